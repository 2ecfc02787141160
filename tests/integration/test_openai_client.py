"""The real `openai` client against our services, over real sockets."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionFunctionToolParam, ChatCompletionMessageParam
from openai.types.responses import FunctionToolParam, Response, ResponseFunctionToolCall, ResponseInputParam
from pydantic import SecretStr

from rollmill.config.settings import ServiceSettings
from rollmill.config.topology import load_topology
from rollmill.contracts.json import dumps
from rollmill.errors import OverloadedError
from rollmill.openai import function_call
from rollmill.server import ServiceApp, model_app
from rollmill.testing import FakeModel
from rollmill.testing.models import Step
from rollmill_services.models.recorded.app import create_app as create_recorded
from rollmill_services.models.recorded.settings import RecordedSettings
from rollmill_services.models.scripted.app import create_app as create_scripted
from rollmill_services.models.scripted.settings import ScriptedSettings

if TYPE_CHECKING:
    from tests.conftest import Serve
    from tests.integration.conftest import NetworkTopology

EXAMPLES = Path(__file__).parents[2] / "examples"
KEY = "a-token"
QUESTION = "What is the weather in Oslo?"
ANSWER = "Clear skies,\nand −3 °C 🙂"
PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: FunctionToolParam = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
CHAT_TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": PARAMETERS, "strict": True},
}
CALL = function_call("get_weather", '{"city":"Oslo"}', "call_1")

both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


def fake(*steps: Step) -> ServiceApp:
    return model_app(FakeModel(steps, ServiceSettings(name="policy", token=SecretStr(KEY))))


def scripted() -> ServiceApp:
    return create_scripted(ScriptedSettings(name="policy", token=SecretStr(KEY)))


@asynccontextmanager
async def client_of(url: str, *, key: str = KEY, max_retries: int = 0) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=max_retries, timeout=20) as client:
        yield client


async def respond(client: AsyncOpenAI, given: str | ResponseInputParam, *, streamed: bool, tools: bool) -> Response:
    """Ask through Responses; streamed, the client itself puts the answer together from the events."""
    offered = [TOOL] if tools else openai.omit
    if not streamed:
        return await client.responses.create(model="m", input=given, tools=offered)
    async with client.responses.stream(model="m", input=given, tools=offered) as stream:
        return await stream.get_final_response()


async def complete(client: AsyncOpenAI, question: str, *, streamed: bool, tools: bool) -> ChatCompletion:
    """Ask through Chat Completions; streamed, the client itself puts the answer together from the chunks."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    offered = [CHAT_TOOL] if tools else openai.omit
    if not streamed:
        return await client.chat.completions.create(model="m", messages=messages, tools=offered)
    async with client.chat.completions.stream(
        model="m", messages=messages, tools=offered, stream_options={"include_usage": True}
    ) as stream:
        return await stream.get_final_completion()


def function_calls(response: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]


@both_ways
async def test_a_response_has_the_text_and_the_usage(serve: "Serve", streamed: bool) -> None:
    async with serve(fake(ANSWER)) as url, client_of(url) as client:
        response = await respond(client, QUESTION, streamed=streamed, tools=False)

    assert response.output_text == ANSWER
    assert response.status == "completed"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (10, 5, 15)


@both_ways
async def test_a_response_has_the_tool_call(serve: "Serve", streamed: bool) -> None:
    async with serve(fake([CALL])) as url, client_of(url) as client:
        response = await respond(client, QUESTION, streamed=streamed, tools=True)

    [call] = function_calls(response)
    assert (call.name, json.loads(call.arguments), call.call_id) == ("get_weather", {"city": "Oslo"}, "call_1")
    assert response.output_text == ""


@both_ways
async def test_a_chat_completion_has_the_text_and_the_usage(serve: "Serve", streamed: bool) -> None:
    async with serve(fake(ANSWER)) as url, client_of(url) as client:
        completion = await complete(client, QUESTION, streamed=streamed, tools=False)

    [choice] = completion.choices
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (10, 5)


@both_ways
async def test_a_chat_completion_has_the_tool_call(serve: "Serve", streamed: bool) -> None:
    async with serve(fake([CALL])) as url, client_of(url) as client:
        completion = await complete(client, QUESTION, streamed=streamed, tools=True)

    [choice] = completion.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    assert call.id == "call_1"


async def test_the_deltas_of_a_stream_add_up_to_the_answer(serve: "Serve") -> None:
    async with serve(fake(ANSWER)) as url, client_of(url) as client:
        events = [event async for event in await client.responses.create(model="m", input=QUESTION, stream=True)]
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": QUESTION}], stream=True
            )
        ]

    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == ANSWER
    assert all(chunk.usage is None for chunk in chunks)  # nobody asked for it


@both_ways
async def test_the_loop_over_a_tool_can_be_driven_by_the_client(serve: "Serve", streamed: bool) -> None:
    async with serve(scripted()) as url, client_of(url) as client:
        first = await respond(client, QUESTION, streamed=streamed, tools=True)
        [call] = function_calls(first)
        turns: ResponseInputParam = [
            {"role": "user", "content": QUESTION},
            {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
            {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."},
        ]
        last = await respond(client, turns, streamed=streamed, tools=True)

    assert json.loads(call.arguments) == {"city": "Oslo"}
    assert not function_calls(last)
    assert "It is sunny." in last.output_text
    assert last.usage is not None
    assert last.usage.total_tokens == last.usage.input_tokens + last.usage.output_tokens > 0


async def test_the_synchronous_client_works_too(serve: "Serve") -> None:
    def ask(url: str) -> tuple[str, str | None]:
        with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=20) as client:
            response = client.responses.create(model="m", input=QUESTION)
            completion = client.chat.completions.create(model="m", messages=[{"role": "user", "content": QUESTION}])
            return response.output_text, completion.choices[0].message.content

    async with serve(fake(ANSWER)) as url:
        assert await asyncio.to_thread(ask, url) == (ANSWER, ANSWER)


@both_ways
async def test_an_agent_answers_like_a_model_that_has_tools(
    network_topology: "NetworkTopology", streamed: bool
) -> None:
    topology = load_topology(EXAMPLES / "weather.yaml")
    async with network_topology(topology) as network:
        [url] = network.urls["weather_agent"]
        async with client_of(url, key=network.token) as client:
            response = await respond(client, QUESTION, streamed=streamed, tools=False)

    assert [item.type for item in response.output] == ["function_call", "function_call_output", "message"]
    assert [json.loads(call.arguments) for call in function_calls(response)] == [{"city": "Oslo"}]
    assert "The weather in Oslo is" in response.output_text
    assert response.usage is not None
    assert response.usage.total_tokens > 0


@both_ways
async def test_a_wrong_key_is_an_authentication_error(serve: "Serve", streamed: bool) -> None:
    async with serve(scripted()) as url, client_of(url, key="wrong") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await respond(client, QUESTION, streamed=streamed, tools=False)
        with pytest.raises(openai.AuthenticationError):
            await complete(client, QUESTION, streamed=streamed, tools=False)

    assert problem(caught.value) == (401, "unauthorized", "this service needs a bearer token")


@both_ways
async def test_an_input_that_was_not_recorded_is_not_found(serve: "Serve", tmp_path: Path, streamed: bool) -> None:
    rollouts = tmp_path / "rollouts.jsonl"
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]}
    row = {"responses_create_params": {"input": "2 + 2?"}, "response": {"output": [message]}}
    rollouts.write_bytes(dumps(row) + b"\n")
    settings = RecordedSettings(name="policy", token=SecretStr(KEY), rollouts=[str(rollouts)])
    async with serve(create_recorded(settings)) as url, client_of(url) as client:
        known = await respond(client, "2 + 2?", streamed=streamed, tools=False)
        with pytest.raises(openai.NotFoundError) as caught:
            await respond(client, "2 + 3?", streamed=streamed, tools=False)
        with pytest.raises(openai.NotFoundError):
            await complete(client, "2 + 3?", streamed=streamed, tools=False)

    assert known.output_text == "4"
    assert problem(caught.value) == (404, "recording-not-found", "no recording has this input")


@both_ways
async def test_a_malformed_request_is_an_unprocessable_entity(serve: "Serve", streamed: bool) -> None:
    async with serve(scripted()) as url, client_of(url) as client:
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            await client.responses.create(model="m", input=5, stream=streamed)  # type: ignore[call-overload]
        with pytest.raises(openai.UnprocessableEntityError):
            await client.chat.completions.create(
                model="m",
                messages="hello",  # type: ignore[arg-type]
                stream=streamed,
            )

    assert problem(caught.value) == (422, "invalid-request", "/input")


async def test_a_path_that_is_not_served_is_not_found(serve: "Serve") -> None:
    async with serve(scripted()) as url, client_of(url) as client:
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="m", input="x")


async def test_an_overloaded_model_is_tried_again_by_the_client(serve: "Serve") -> None:
    app = fake(OverloadedError("busy", retry_after=0.05), ANSWER)
    async with serve(app) as url, client_of(url, max_retries=1) as client:
        response = await respond(client, QUESTION, streamed=False, tools=False)

    assert response.output_text == ANSWER


def problem(error: openai.APIStatusError) -> tuple[int, str, str]:
    """What the client makes of a problem document: status, slug, and the detail up to its first `;` or `:`."""
    assert isinstance(error.body, dict)
    slug = str(error.body["type"]).removeprefix("urn:rollmill:problem:")
    return error.status_code, slug, re.split("[;:]", str(error.body["detail"]))[0]
