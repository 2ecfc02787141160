from dataclasses import dataclass

from rollmill.errors import InputError
from rollmill_services.resources.reward_model.settings import TooLong


@dataclass(frozen=True, slots=True)
class Fitted:
    """The token ids that are scored; None when the conversation is too long and gets a fixed reward."""

    ids: tuple[int, ...] | None
    truncated: bool = False


def fit(ids: tuple[int, ...], limit: int, on_too_long: TooLong) -> Fitted:
    """Apply the policy for long conversations. The end is never cut: the last token carries the score.

    Args:
        ids: token ids of the conversation.
        limit: most tokens that the model reads.
        on_too_long: the policy.

    Raises:
        InputError: there are no tokens, or too many and the policy is `error`; both lengths are told.
    """
    if not ids:
        raise InputError("the conversation has no tokens: nothing can be scored")
    if len(ids) <= limit:
        return Fitted(ids)
    if on_too_long == "truncate_left":
        return Fitted(ids[-limit:], truncated=True)
    if on_too_long == "truncate_middle":
        head = limit // 2
        return Fitted(ids[:head] + ids[len(ids) - (limit - head) :], truncated=True)
    if on_too_long == "reward":
        return Fitted(None)
    raise InputError(
        f"the conversation has {len(ids)} tokens and the reward model reads {limit}: "
        "shorten the answers, or set on_too_long or max_model_len",
        num_tokens=len(ids),
        max_model_len=limit,
        upstream_type="reward_model_too_long",
    )
