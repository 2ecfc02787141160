import time

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import UpstreamError
from rollmill.ids import new_id
from rollmill.openai.items import (
    as_json_text,
    as_object,
    function_call,
    output_message,
    reasoning_item,
    text_message,
)
from rollmill.openai.messages import AssistantTurn, message_reasoning
from rollmill.openai.tokens import logprob_entries, part_logprobs, token_fields
from rollmill.openai.usage import complete_usage, usage_from_chat, usage_to_chat

_ECHOED: JsonObject = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": None,
    "store": False,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_logprobs": None,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""Request fields that a Responses object repeats, with what it says when the request does not set them."""

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
_FINISH_REASONS = {reason: finish for finish, reason in _INCOMPLETE_REASONS.items()}
_BROKEN_OFF = frozenset({"abort", "error"})


def new_response(
    output: list[JsonObject],
    *,
    request: JsonObject,
    model: str,
    usage: JsonObject | None = None,
    status: str = "completed",
) -> JsonObject:
    """Build a whole Responses object, with every field that clients require.

    Args:
        output: the output items, as `text_message` and `function_call` build them.
        request: the Responses request, whose settings the object repeats.
        model: name of the model that answered; the request's own when empty.
        usage: token counts, at least `input_tokens` and `output_tokens`; missing details become 0.
        status: `completed`, `incomplete` (cut at `max_output_tokens`) or `in_progress`.
    """
    now = int(time.time())
    asked = {key: value for key, value in request.items() if value is not None and key in _ECHOED}
    tools = request.get("tools") or []
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": now,
        "completed_at": now if status == "completed" else None,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": model or request.get("model") or "",
        "output": output,
        "tools": [_echoed_tool(tool) for tool in tools if isinstance(tool, dict)],
        "usage": None if usage is None else complete_usage(usage),
        **_ECHOED,
        **asked,
    }


def _echoed_tool(tool: JsonObject) -> JsonObject:
    """Return a tool definition with the fields that clients require of a function tool."""
    return {"parameters": None, "strict": None, **tool} if tool.get("type") == "function" else tool


def first_choice(completion: JsonObject) -> JsonObject:
    """Return the first choice of a chat completion.

    Raises:
        UpstreamError: there is none, or the engine broke the generation off.
    """
    choices = completion.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise UpstreamError("the chat completion has no choices", retryable=True)
    check_finish(choice.get("finish_reason"))
    return choice


def check_finish(reason: JsonValue) -> None:
    """Refuse the finish reasons that mean that the engine broke the generation off.

    Raises:
        UpstreamError: the answer is not one that the model gave to its end.
    """
    if reason in _BROKEN_OFF:
        raise UpstreamError(f"the engine broke the generation off: finish_reason {reason!r}", retryable=True)


def chat_completion_to_response(completion: JsonObject, request: JsonObject) -> JsonObject:
    """Convert a chat completion to the Responses object that answers `request`, a Responses request.

    Raises:
        UpstreamError: the completion has no choices, or the engine broke the generation off.
    """
    choice = first_choice(completion)
    output = output_from_message(as_object(choice.get("message")), choice)
    output[-1] |= token_fields(choice.get("message"), choice, completion)
    response = new_response(
        output,
        request=request,
        model=str(completion.get("model") or ""),
        usage=usage_from_chat(completion.get("usage")),
    )
    identity = str(completion.get("id") or "").removeprefix("chatcmpl-")
    response["id"] = f"resp_{identity}" if identity else response["id"]
    response["created_at"] = completion.get("created") or response["created_at"]
    return finished(response, choice.get("finish_reason"))


def finished(response: JsonObject, finish_reason: JsonValue) -> JsonObject:
    """Set the status that a chat finish reason stands for, on the response and on its last item."""
    reason = _INCOMPLETE_REASONS.get(str(finish_reason))
    if reason:
        response |= {"status": "incomplete", "incomplete_details": {"reason": reason}, "completed_at": None}
        if response["output"] and "status" in response["output"][-1]:
            response["output"][-1]["status"] = "incomplete"
    return response


def output_from_message(message: JsonObject, choice: JsonObject) -> list[JsonObject]:
    """Return the output items of a chat answer, at least one; its text part takes the choice's log-probs."""
    items: list[JsonObject] = []
    if reasoning := message_reasoning(message):
        items.append(reasoning_item(reasoning))
    if content := as_json_text(message.get("content")):
        items.append(text_message(content))
        if entries := logprob_entries(choice):
            items[-1]["content"][0]["logprobs"] = part_logprobs(entries)
    if message.get("refusal"):
        items.append(output_message([{"type": "refusal", "refusal": message["refusal"]}]))
    for call in map(as_object, message.get("tool_calls") or []):
        function = as_object(call.get("function"))
        name, arguments = str(function.get("name") or ""), as_json_text(function.get("arguments"))
        items.append(function_call(name, arguments, call.get("id")))
    return items or [text_message("")]


def response_to_chat_completion(response: JsonObject) -> JsonObject:
    """Convert a Responses object to a chat completion.

    Raises:
        UpstreamError: the response has failed.
    """
    check_failed(response)
    turn = AssistantTurn()
    items = [
        item for item in map(as_object, response.get("output") or []) if item.get("role", "assistant") == "assistant"
    ]
    for index, item in enumerate(items):
        turn.add(item, f"/output/{index}")
    message = {"refusal": None} | turn.message()
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish_reason(response, has_calls="tool_calls" in message),
        "logprobs": _choice_logprobs(items),
    }
    completion = {
        "id": chat_id(response),
        "object": "chat.completion",
        "created": int(response.get("created_at") or time.time()),
        "model": response.get("model") or "",
        "choices": [choice],
    }
    usage = usage_to_chat(response.get("usage"))
    return completion if usage is None else {**completion, "usage": usage}


def check_failed(response: JsonObject) -> None:
    """Refuse a response whose status is `failed` or `cancelled`.

    Raises:
        UpstreamError: with the message of the engine.
    """
    status = response.get("status")
    if status in ("failed", "cancelled"):
        raise _engine_failure(as_object(response.get("error")), f"the engine's response is {status}")


def check_error(part: JsonObject) -> None:
    """Refuse a chunk or event by which an engine reports an error in the middle of a stream.

    Raises:
        UpstreamError: with the message of the engine.
    """
    error = part.get("error") or (part if part.get("type") == "error" else None)
    if error:
        raise _engine_failure(as_object(error), f"the engine reported {error!r}")


def _engine_failure(problem: JsonObject, otherwise: str) -> UpstreamError:
    """Return the error for what an engine says about itself; retryable unless it says that the request is at fault."""
    code = problem.get("code")
    at_fault = code != 429 and str(code).startswith(("4", "invalid", "context_length"))
    return UpstreamError(str(problem.get("message") or otherwise)[:500], upstream_type=code, retryable=not at_fault)


def chat_id(response: JsonObject) -> str:
    """Return the id of the chat completion that says the same as a response."""
    return "chatcmpl-" + str(response.get("id") or new_id()).removeprefix("resp_")


def finish_reason(response: JsonObject, *, has_calls: bool) -> str:
    """Return the chat finish reason of a finished response."""
    if response.get("status") == "incomplete":
        reason = as_object(response.get("incomplete_details")).get("reason")
        return _FINISH_REASONS.get(str(reason), "length")
    return "tool_calls" if has_calls else "stop"


def _choice_logprobs(items: list[JsonObject]) -> JsonObject | None:
    parts = [part for item in items if isinstance(item.get("content"), list) for part in item["content"]]
    entries = [entry for part in map(as_object, parts) for entry in part.get("logprobs") or []]
    return {"content": entries, "refusal": None} if entries else None
