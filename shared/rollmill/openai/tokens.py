"""Token ids and log-probs, which engines name in several ways and place in several spots."""

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.openai.items import (
    GENERATION_LOG_PROBS,
    GENERATION_TOKEN_IDS,
    PROMPT_TOKEN_IDS,
    as_object,
    drop_nulls,
)

_ENGINE_NAMES = {
    PROMPT_TOKEN_IDS: (PROMPT_TOKEN_IDS,),
    GENERATION_TOKEN_IDS: (GENERATION_TOKEN_IDS, "token_ids"),
    GENERATION_LOG_PROBS: (GENERATION_LOG_PROBS,),
}
_TOKEN_ID_MARK = "token_id:"  # an engine that is asked for ids in place of texts writes tokens as `token_id:42`


def token_fields(*places: JsonValue) -> JsonObject:
    """Collect the token ids and log-probs that an engine returned.

    Args:
        places: objects to look in, the first that has a field wins: the message or delta, its choice, the whole.

    Returns:
        Those of `prompt_token_ids`, `generation_token_ids` and `generation_log_probs` that are known. The last
        is derived from ordinary log-probs only where the token ids are known, which is when somebody trains.
    """
    found = {
        field: next((place[name] for place in map(as_object, places) for name in names if place.get(name)), None)
        for field, names in _ENGINE_NAMES.items()
    }
    logprobs = [entry for place in places for entry in logprob_entries(place)]
    found[GENERATION_TOKEN_IDS] = found[GENERATION_TOKEN_IDS] or _marked_ids(logprobs)
    if found[GENERATION_TOKEN_IDS] and not found[GENERATION_LOG_PROBS] and logprobs:
        found[GENERATION_LOG_PROBS] = [entry.get("logprob") for entry in logprobs]
    return drop_nulls(found)


def logprob_entries(choice: JsonValue) -> list[JsonObject]:
    """Return the entries of a choice's `logprobs.content`."""
    logprobs = as_object(choice).get("logprobs")
    entries = as_object(logprobs).get("content")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _marked_ids(entries: list[JsonObject]) -> list[int] | None:
    tokens = [str(entry.get("token", "")) for entry in entries]
    numbers = [token.removeprefix(_TOKEN_ID_MARK) for token in tokens if token.startswith(_TOKEN_ID_MARK)]
    if not tokens or len(numbers) != len(tokens) or not all(number.isdecimal() for number in numbers):
        return None
    return [int(number) for number in numbers]


def part_logprobs(entries: list[JsonObject]) -> list[JsonObject]:
    """Convert chat log-prob entries to those of an `output_text` part, where bytes and alternatives are required."""
    return [_part_logprob(entry) | {"top_logprobs": _alternatives(entry)} for entry in entries]


def _part_logprob(entry: JsonObject) -> JsonObject:
    token = str(entry.get("token", ""))
    raw = entry.get("bytes")
    return {"token": token, "bytes": list(token.encode()) if raw is None else raw, "logprob": entry.get("logprob")}


def _alternatives(entry: JsonObject) -> list[JsonObject]:
    return [_part_logprob(other) for other in entry.get("top_logprobs") or []]
