"""Every operation of every service's OpenAPI document, asked with what schemathesis makes of its schema.

No input may cause an error of the server's own, and nobody is answered without the token, health aside.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from schemathesis import Case
from schemathesis.core import NOT_SET
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from rollmill.config.loading import find_service
from rollmill.contracts.json import JsonObject, dumps
from rollmill.server import ServiceApp
from rollmill_services.resources.reward_model.tiny import make_checkpoint

AnyCase: TypeAlias = Case[Any]

TOKEN = "fuzz-token"
SERVICES = sorted(entry.name for entry in entry_points(group="rollmill.services"))
EXAMPLES = 10
"""For each operation."""
OWN_SETTINGS: dict[str, JsonObject] = {
    "openai_compatible": {"base_url": "http://127.0.0.1:9/v1", "max_retries": 0},
    "tool_loop": {"model": "policy", "resources": "weather"},
    "single_turn": {"model": "policy", "resources": "weather"},
    "gymnasium_loop": {"model": "policy", "resources": "toy_text"},
    "user_simulator": {"model": "policy", "resources": "weather", "user_model": "policy"},
    "remote": {"resources": "weather", "base_url": "http://127.0.0.1:9", "model": "m"},
    "llm_judge": {"judge": "policy"},
    "genrm_compare": {"judge": "policy", "wait_seconds": 0.1},
}
OPEN_PAGES = ("/ui", "/login", "/logout")
"""The head's page and the way into it: they hold no data, and `/login` is what the token is typed into."""
EXTRAS = {"reasoning_gym": "reasoning_gym", "reward_model": "torch"}
"""Libraries that a service cannot start without, and that are not among those for development."""
UPSTREAM_IS_AWAY = {
    *("openai_compatible", "tool_loop", "single_turn", "gymnasium_loop", "user_simulator", "remote"),
    *("llm_judge", "genrm_compare"),
}
"""These call others, of which there are none here: 502 and 404 are the truth, 500 never is."""


class Fuzzed:
    """One running service, and calls of it from synchronous code."""

    def __init__(self, app: ServiceApp, runner: asyncio.Runner, allowed: Collection[int]) -> None:
        self.app = app
        self._allowed = allowed
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://service", timeout=30)
        self._runner = runner

    def post(self, path: str, body: bytes) -> httpx.Response:
        self._client.cookies.clear()
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        return self._runner.run(asyncio.wait_for(self._client.post(path, content=body, headers=headers), 30))

    def is_own_error(self, answer: httpx.Response) -> bool:
        return answer.status_code >= 500 and answer.status_code not in self._allowed

    def posts(self) -> list[str]:
        paths: JsonObject = self.app.openapi()["paths"]
        return [path.replace("{run_id}", "x") for path, operations in paths.items() if "post" in operations]

    def ask(self, case: AnyCase, token: str | None) -> httpx.Response:
        headers = {name: value for name, value in dict(case.headers).items() if value.isascii() and value.isprintable()}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        body = b"" if case.body is NOT_SET else case.as_transport_kwargs().get("data")
        given = {"json": case.body} if body is None else {"content": body}
        self._client.cookies.clear()
        request = self._client.request(
            case.method, case.formatted_path, params=dict(case.query), headers=headers, **given
        )
        return self._runner.run(asyncio.wait_for(request, 30))


@contextmanager
def running(service: str, folder: Path) -> Iterator[Fuzzed]:
    if service in EXTRAS:
        pytest.importorskip(EXTRAS[service], reason=f"the extra of {service} is not installed")
    definition = find_service(service)
    values: JsonObject = {"name": service, "token": SecretStr(TOKEN), **OWN_SETTINGS.get(service, {})}
    if "data_dir" in definition.settings_type.model_fields:
        values["data_dir"] = folder
    if service == "recorded":
        (folder / "recorded.jsonl").write_text("")
        values["rollouts"] = [str(folder / "recorded.jsonl")]
    if service == "reward_model":
        values["model_name"] = str(make_checkpoint(folder / "checkpoint"))
    app = definition.factory(definition.settings_type.model_validate(values))
    assert isinstance(app, ServiceApp)
    with asyncio.Runner() as runner:
        running = app.running()
        runner.run(running.__aenter__())
        try:
            yield Fuzzed(app, runner, {502, 504} if service in UPSTREAM_IS_AWAY else ())
        finally:
            runner.run(running.__aexit__(None, None, None))


@pytest.fixture(scope="module", params=SERVICES)
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    with running(request.param, tmp_path_factory.mktemp("data")) as fuzzed:
        yield fuzzed


def test_no_input_breaks_a_service_and_nobody_is_answered_without_the_token(fuzzed: Fuzzed) -> None:
    schema = schemathesis.openapi.from_dict(fuzzed.app.openapi())
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    answers = Counter[tuple[bool, int]]()
    for operation in operations:
        cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])

        @seed(5)
        @settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
        @given(case=cases, token=st.sampled_from([TOKEN, TOKEN, "wrong", None]))
        def ask(case: AnyCase, token: str | None) -> None:
            answer = fuzzed.ask(case, token)
            answers[token == TOKEN, answer.status_code] += 1
            check(fuzzed, case, token, answer)

        ask()
    # The fuzzing is not vacuous: callers with the token got through, to a result as well as to a refusal.
    assert answers[True, 200] + answers[True, 204] >= 3
    assert answers[True, 422] >= 3
    assert answers[False, 401] >= 3


def check(fuzzed: Fuzzed, case: AnyCase, token: str | None, answer: httpx.Response) -> None:
    shown = f"{case.method} {case.formatted_path} {case.query} {case.body!r}: {answer.status_code} {answer.text}"
    if case.path in ("/livez", "/readyz"):
        assert answer.status_code == 204, shown
    elif case.path.startswith(OPEN_PAGES) or case.path == "/":
        assert not fuzzed.is_own_error(answer), shown
    elif token != TOKEN:
        assert answer.status_code == 401, shown
    else:
        assert not fuzzed.is_own_error(answer), shown


KNOWN = [
    "responses_create_params",
    "input",
    "messages",
    "role",
    "content",
    "type",
    "text",
    "output",
    "response",
    "usage",
    "tools",
    "name",
    "parameters",
    "function",
    "arguments",
    "call_id",
    "metadata",
    "extra_body",
    "agent_ref",
    "verify_responses",
    "reward",
    "reward_components",
    "expected_answer",
    "options",
    "verifier_metadata",
    "template_metadata",
    "stream",
    "temperature",
    "max_output_tokens",
    "n",
    "choices",
    "message",
    "tool_calls",
    "id",
    "input_tokens",
    "incomplete_details",
    "reasoning",
    "_ng_task_index",
    "_ng_rollout_index",
    "rows",
    "num_repeats",
    "rollouts",
    "inputs",
    "prompt",
    "user",
]
"""Members that something in the services reads; here they have any value."""
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-9, 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KNOWN), inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(st.sampled_from(KNOWN), VALUES, min_size=1, max_size=6)


def test_known_members_of_unknown_shapes_break_no_service(fuzzed: Fuzzed) -> None:
    paths = fuzzed.posts()

    @seed(5)
    @settings(max_examples=EXAMPLES * max(1, len(paths)), phases=[Phase.generate])
    @given(path=st.sampled_from(paths or ["/none"]), body=BODIES)
    def ask(path: str, body: JsonObject) -> None:
        answer = fuzzed.post(path, dumps(body))
        assert not fuzzed.is_own_error(answer), f"{path} {body}: {answer.status_code} {answer.text}"

    ask()


@pytest.mark.parametrize("levels", [200, 300, 100_000])
def test_nesting_of_any_depth_breaks_no_service(fuzzed: Fuzzed, levels: int) -> None:
    for path in fuzzed.posts():
        for start, end in (("[", "]"), ('{"a":', "}")):
            bomb = start * levels + "1" + end * levels
            known = f'{{"input": [1], "response": {{"output": []}}, "x": {bomb}}}'
            for body in (known, f'{{"rows": [{{"a": {bomb}}}]}}', f'{{"rollouts": [{{"a": {bomb}}}]}}'):
                answer = fuzzed.post(path, body.encode())
                assert not fuzzed.is_own_error(answer), f"{path}: {answer.status_code} {answer.text[:300]}"
