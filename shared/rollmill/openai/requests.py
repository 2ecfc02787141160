from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.openai.items import as_object, bad_input, drop_nulls, input_items
from rollmill.openai.messages import input_from_messages, messages_from_input

_CHAT_FIELDS = frozenset(
    {"messages", "tools", "tool_choice", "response_format", "verbosity", "reasoning_effort", "stream_options"}
    | {"max_tokens", "max_completion_tokens", "n", "logprobs", "top_logprobs"}
)
_RESPONSES_FIELDS = frozenset(
    {"input", "instructions", "tools", "tool_choice", "text", "reasoning", "max_output_tokens", "include"}
    | {"top_logprobs", "stream_options", "truncation", "background", "max_tool_calls", "context_management"}
)
_STATEFUL_FIELDS = ("previous_response_id", "conversation", "prompt")
_LOGPROBS = "message.output_text.logprobs"


def chat_request_to_responses(request: JsonObject) -> JsonObject:
    """Convert a Chat Completions request to a Responses request; fields that both know stay as they are.

    Raises:
        InputError: a message is malformed, or several choices are asked for, which Responses cannot give.
    """
    if request.get("n") not in (None, 1):
        raise bad_input("/n", "a Responses request has one answer: n must be 1")
    body: JsonObject = {"input": input_from_messages(request.get("messages"))}
    body |= {key: value for key, value in request.items() if key not in _CHAT_FIELDS}
    body["max_output_tokens"] = _first(request.get("max_completion_tokens"), request.get("max_tokens"))
    if request.get("tools"):
        body["tools"] = [_flat_tool(tool) for tool in _tools(request)]
        body["tool_choice"] = _flat_choice(request.get("tool_choice"))
    body["text"] = _text_config(request)
    if request.get("reasoning_effort"):
        body["reasoning"] = {"effort": request["reasoning_effort"]}
    if request.get("logprobs"):
        body["include"] = [_LOGPROBS]
        body["top_logprobs"] = request.get("top_logprobs")
    return drop_nulls(body)


def responses_request_to_chat(request: JsonObject) -> JsonObject:
    """Convert a Responses request to a Chat Completions request, `metadata.extra_body` merged in.

    Raises:
        InputError: the request uses what Chat Completions does not have (stored state, hosted tools, unknown
            items); the pointer names it.
    """
    for field in _STATEFUL_FIELDS:
        if request.get(field) is not None:
            raise bad_input(f"/{field}", "Chat Completions keeps no state; send the whole input")
    messages = messages_from_input(input_items(request.get("input")))
    if request.get("instructions"):
        messages.insert(0, {"role": "system", "content": request["instructions"]})
    kept = {key: value for key, value in request.items() if key not in {*_RESPONSES_FIELDS, *_STATEFUL_FIELDS}}
    body: JsonObject = {"messages": messages, **kept, "max_completion_tokens": request.get("max_output_tokens")}
    if request.get("tools"):
        body["tools"] = [_nested_tool(tool, f"/tools/{index}") for index, tool in enumerate(_tools(request))]
        body["tool_choice"] = _nested_choice(request.get("tool_choice"))
    else:
        body.pop("parallel_tool_calls", None)  # engines refuse it in a request without tools
    body |= _text_fields(as_object(request.get("text")))
    body["reasoning_effort"] = as_object(request.get("reasoning")).get("effort")
    body |= _logprob_fields(request)
    return merge_extra_body(body)


def merge_extra_body(request: JsonObject) -> JsonObject:
    """Merge `metadata.extra_body`, a JSON object as text, into the top level, and drop null fields.

    Rows carry engine extensions such as `seed` there, because `metadata` only holds strings. They win over the
    request's own fields.

    Raises:
        InputError: `extra_body` is not the text of a JSON object.
    """
    metadata = request.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("extra_body") is None:
        return drop_nulls(request)
    others = {key: value for key, value in metadata.items() if key != "extra_body"}
    merged = {**request, "metadata": others or None, **_parsed_extra_body(metadata["extra_body"])}
    return drop_nulls(merged)


def _parsed_extra_body(text: JsonValue) -> JsonObject:
    try:
        extra = loads(text) if isinstance(text, str) else text
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise bad_input("/metadata/extra_body", "must be a JSON object, written as a string")
    return extra


def _first(*values: JsonValue) -> JsonValue:
    return next((value for value in values if value is not None), None)


def _tools(request: JsonObject) -> list[JsonObject]:
    tools: JsonValue = request["tools"]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise bad_input("/tools", "must be a list of tool definitions")
    return tools


def _flat_tool(tool: JsonObject) -> JsonObject:
    """Return a tool in the shape of Responses: name and parameters beside the type."""
    function = tool.get("function")
    return {"type": "function", **drop_nulls(function)} if isinstance(function, dict) else tool


def _nested_tool(tool: JsonObject, pointer: str) -> JsonObject:
    """Return a tool in the shape of Chat Completions: name and parameters under `function`."""
    if isinstance(tool.get("function"), dict):
        return tool
    if tool.get("type", "function") != "function":
        raise bad_input(f"{pointer}/type", f"{tool.get('type')!r} tools do not exist in Chat Completions")
    return {"type": "function", "function": drop_nulls({key: tool[key] for key in tool if key != "type"})}


def _flat_choice(choice: JsonValue) -> JsonValue:
    if not isinstance(choice, dict):
        return choice
    allowed = choice.get("allowed_tools")
    if isinstance(allowed, dict):
        tools = [_flat_tool(tool) for tool in allowed.get("tools") or []]
        return {"type": "allowed_tools", **allowed, "tools": tools}
    return _flat_tool(choice)


def _nested_choice(choice: JsonValue) -> JsonValue:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools" and "allowed_tools" not in choice:
        tools = [_nested_tool(tool, "/tool_choice/tools") for tool in choice.get("tools") or []]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": tools}}
    return choice if "allowed_tools" in choice else _nested_tool(choice, "/tool_choice")


def _text_config(request: JsonObject) -> JsonObject | None:
    """Return the `text` of a Responses request for a chat request's `response_format` and `verbosity`."""
    response_format = request.get("response_format")
    if isinstance(response_format, dict) and isinstance(response_format.get("json_schema"), dict):
        response_format = {"type": "json_schema", **drop_nulls(response_format["json_schema"])}
    return drop_nulls({"format": response_format, "verbosity": request.get("verbosity")}) or None


def _text_fields(text: JsonObject) -> JsonObject:
    """Return the chat fields that say the same as the `text` of a Responses request."""
    response_format = text.get("format")
    if isinstance(response_format, dict) and response_format.get("type") == "json_schema":
        schema = {key: value for key, value in response_format.items() if key != "type"}
        response_format = {"type": "json_schema", "json_schema": drop_nulls(schema)}
    return {"response_format": response_format, "verbosity": text.get("verbosity")}


def _logprob_fields(request: JsonObject) -> JsonObject:
    wanted = _LOGPROBS in (request.get("include") or []) or bool(request.get("top_logprobs"))
    return {"logprobs": True, "top_logprobs": request.get("top_logprobs")} if wanted else {}
