from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.openai.items import as_object


def complete_usage(usage: JsonObject) -> JsonObject:
    """Return a Responses usage with every field that clients require; unknown fields are kept."""
    inputs, outputs = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    input_details = {"cached_tokens": 0, "cache_write_tokens": 0} | _known(usage, "input_tokens_details")
    output_details = {"reasoning_tokens": 0} | _known(usage, "output_tokens_details")
    return {
        **usage,
        "input_tokens": inputs,
        "input_tokens_details": input_details,
        "output_tokens": outputs,
        "output_tokens_details": output_details,
        "total_tokens": _count(usage, "total_tokens") or inputs + outputs,
    }


def usage_from_chat(usage: JsonValue) -> JsonObject | None:
    """Convert the usage of a chat completion to that of a Responses object; None when there is none."""
    if not isinstance(usage, dict):
        return None
    return complete_usage(
        {
            "input_tokens": _count(usage, "prompt_tokens"),
            "input_tokens_details": _known(usage, "prompt_tokens_details"),
            "output_tokens": _count(usage, "completion_tokens"),
            "output_tokens_details": _known(usage, "completion_tokens_details"),
            "total_tokens": _count(usage, "total_tokens"),
        }
    )


def usage_to_chat(usage: JsonValue) -> JsonObject | None:
    """Convert the usage of a Responses object to that of a chat completion; None when there is none."""
    if not isinstance(usage, dict):
        return None
    whole = complete_usage(usage)
    return {
        "prompt_tokens": whole["input_tokens"],
        "completion_tokens": whole["output_tokens"],
        "total_tokens": whole["total_tokens"],
        "prompt_tokens_details": whole["input_tokens_details"],
        "completion_tokens_details": whole["output_tokens_details"],
    }


def add_usage(total: JsonObject | None, usage: JsonValue) -> JsonObject | None:
    """Add the numbers of one call's `usage` to the sum so far, nested details too; None when neither has any."""
    if not isinstance(usage, dict):
        return total
    summed = dict(total or {})
    for name, value in usage.items():
        if isinstance(value, dict):
            summed[name] = add_usage(summed.get(name), value)
        elif isinstance(value, int | float):
            summed[name] = (summed.get(name) or 0) + value
        else:
            summed.setdefault(name, value)
    return summed


def _count(usage: JsonObject, field: str) -> int:
    value = usage.get(field)
    return value if isinstance(value, int) else 0


def _known(usage: JsonObject, field: str) -> JsonObject:
    return {key: value for key, value in as_object(usage.get(field)).items() if value is not None}
