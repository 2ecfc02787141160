from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from rollmill.contracts.json import JsonObject
from rollmill.server import ServiceApp
from rollmill.testing import asgi_client
from rollmill_services.resources.counter.app import create_app as counter_app
from rollmill_services.resources.mcqa.app import create_app as mcqa_app
from rollmill_services.resources.string_match.app import create_app as string_match_app
from rollmill_services.resources.weather.app import create_app as weather_app

ANSWER = {"output": [{"type": "message", "role": "assistant", "content": r"\boxed{B}"}]}


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    create_app: Callable[[], ServiceApp] = request.param
    app = create_app()
    async with asgi_client(app) as http:
        yield http


async def seed(client: httpx.AsyncClient, row: JsonObject) -> None:
    response = await client.post("/seed_session", json=row)

    assert response.status_code == 200  # the session's cookie stays with the client


@pytest.mark.parametrize("client", [counter_app], indirect=True)
async def test_a_counter_session_is_seeded_changed_and_graded(client: httpx.AsyncClient) -> None:
    row = {"initial_count": 3, "expected_count": 7}
    await seed(client, row)
    await client.post("/increment_counter", json={"count": 4})
    count = await client.post("/get_counter_value", json={})
    verified = (await client.post("/verify", json={**row, "response": ANSWER})).json()

    assert count.json() == {"count": 7}
    assert verified["reward"] == 1.0
    assert verified["final_count"] == 7


@pytest.mark.parametrize(
    ("client", "row", "field"),
    [
        (counter_app, {}, "initial_count"),
        (counter_app, {"initial_count": 0}, "expected_count"),
        (counter_app, {"initial_count": 0, "expected_count": "4"}, "expected_count"),
        (mcqa_app, {"expected_answer": "A"}, "options"),
        (mcqa_app, {"options": {"A": "x"}}, "expected_answer"),
        (mcqa_app, {"options": {"A": "x"}, "expected_answer": "B"}, "expected_answer"),
        (mcqa_app, {"options": {"A": "x"}, "expected_answer": "A", "grading_mode": "kind"}, "grading_mode"),
        (string_match_app, {}, "expected_answer"),
        (string_match_app, {"expected_answer": "x", "extraction_mode": "guess"}, "extraction_mode"),
        (string_match_app, {"expected_answer": "x", "case_sensitive": "perhaps"}, "case_sensitive"),
    ],
    indirect=["client"],
)
async def test_a_row_that_could_not_be_graded_is_refused_before_any_model_is_asked(
    client: httpx.AsyncClient, row: JsonObject, field: str
) -> None:
    response = await client.post("/seed_session", json=row)

    assert response.status_code == 422
    assert [fault["pointer"] for fault in response.json()["errors"]] == [f"/{field}"]


@pytest.mark.parametrize("client", [weather_app], indirect=True)
async def test_a_required_weather_call_is_rewarded(client: httpx.AsyncClient) -> None:
    row = {"require_tool_call": True}
    await seed(client, row)
    before = (await client.post("/verify", json={**row, "response": ANSWER})).json()
    weather = (await client.post("/get_weather", json={"city": "Oslo"})).json()
    after = (await client.post("/verify", json={**row, "response": ANSWER})).json()

    assert weather["city"] == "Oslo"
    assert (before["reward"], after["reward"]) == (0.0, 1.0)


@pytest.mark.parametrize("client", [mcqa_app], indirect=True)
async def test_a_choice_is_graded_without_a_session(client: httpx.AsyncClient) -> None:
    row = {"options": [{"A": "x"}, {"B": "y"}], "expected_answer": "B", "response": ANSWER, "extra": [1]}
    verified = (await client.post("/verify", json=row)).json()

    assert verified == {**row, "extracted_answer": "B", "reward": 1.0}
    assert (await client.get("/reverify_mode")).json() == "stateless"


@pytest.mark.parametrize("client", [string_match_app], indirect=True)
async def test_a_text_is_graded_without_a_session(client: httpx.AsyncClient) -> None:
    row = {"expected_answer": "b", "response": ANSWER}
    verified = (await client.post("/verify", json=row)).json()

    assert verified == {**row, "extracted_answer": "B", "reward": 1.0}
