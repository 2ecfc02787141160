"""What `/step` and a trainer's environment say about one conversation."""

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import RollmillError, is_retryable
from rollmill_services.resources.reward_model.conversations import chat_messages
from rollmill_services.resources.reward_model.scorer import Judgement


def observation(one: Judgement | RollmillError) -> JsonObject:
    """Return the environment's message, with the reward as a plain number."""
    said = f"{one.reward:g}" if isinstance(one, Judgement) else "not scored"
    return {"role": "environment", "content": f"Environment: {said}"}


def answer_of(log: JsonValue) -> str:
    """Return the text of the last message of a log."""
    if isinstance(log, str):
        return log
    content: str = chat_messages(log, "")[-1]["content"]
    return content


def error_entry(error: RollmillError) -> JsonObject:
    """Return what is said about a conversation that has no score."""
    kind = error.extensions.get("upstream_type", error.slug)
    return {"type": kind, "detail": error.detail, "retryable": is_retryable(error)}
