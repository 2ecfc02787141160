import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, loads
from rollmill.contracts.rollouts import Rollout
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill.server.tools import declared_tools
from rollmill_services.resources.counter.verifier import Counter
from rollmill_services.resources.mcqa.verifier import Mcqa
from rollmill_services.resources.string_match.verifier import StringMatch
from rollmill_services.resources.weather.verifier import Weather

DATA = Path(__file__).parents[3] / "examples/data"
COUNTS = {"weather": 10, "counter": 10, "mcqa": 24, "string_match": 24, "math": 40, "reward_model": 12}


def tasks(name: str) -> list[JsonObject]:
    return [loads(line) for line in (DATA / f"{name}.jsonl").read_bytes().splitlines()]


def finished(task: JsonObject, text: str) -> Rollout:
    return Rollout({**task, "response": {"output": [{"type": "message", "role": "assistant", "content": text}]}})


def question(task: JsonObject) -> str:
    text: str = task["responses_create_params"]["input"][0]["content"]
    return text


@pytest.mark.parametrize("name", COUNTS)
def test_each_file_holds_well_formed_tasks_for_one_agent(name: str) -> None:
    found = tasks(name)

    assert len(found) == COUNTS[name]
    assert {rows.agent_name(task) for task in found} == {f"{name}_agent"}
    assert all(set(task["responses_create_params"]) == {"input"} for task in found)
    assert len({question(task) for task in found}) == len(found)


@pytest.fixture(params=[("mcqa", Mcqa), ("string_match", StringMatch)], ids=["mcqa", "string_match"])
async def environment(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, Resources]]:
    name, kind = request.param
    verifier: Resources = kind()
    yield name, verifier
    await verifier.shutdown()


async def test_each_bundled_task_accepts_its_answer_and_rejects_another(environment: tuple[str, Resources]) -> None:
    name, verifier = environment
    for task in tasks(name):
        expected, session = task["expected_answer"], Session("s", task)
        right = await verifier.verify(finished(task, rf"\boxed{{{expected}}}"), session)
        wrong = await verifier.verify(finished(task, r"\boxed{wrong}"), session)

        assert getattr(right, "reward", None) == 1.0, task
        assert getattr(wrong, "reward", None) == 0.0, task


def test_the_options_of_a_multiple_choice_task_stand_in_its_question() -> None:
    for task in tasks("mcqa"):
        lines = question(task).splitlines()
        assert all(f"{letter}: {text}" in lines for option in task["options"] for letter, text in option.items())


async def test_doing_what_a_counter_task_says_is_rewarded() -> None:
    counter = Counter()
    increment = declared_tools(counter)["increment_counter"]
    for task in tasks("counter"):
        session = Session("s", task)
        await counter.seed_session(session, task)
        for amount in re.findall(r"add (-?\d+)", question(task), re.IGNORECASE):
            await increment.call(session, {"count": int(amount)})

        assert (await counter.verify(finished(task, "Done."), session)).reward == 1.0


async def test_some_weather_tasks_require_the_tool_and_some_do_not() -> None:
    rewards = [
        (await Weather().verify(finished(task, "Hello."), Session("s", task))).reward for task in tasks("weather")
    ]

    assert set(rewards) == {0.0, 1.0}
