import json

import pytest

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout
from rollmill.errors import InputError
from rollmill.server.sessions import Session
from rollmill.server.tools import ToolError, declared_tools
from rollmill_services.resources.counter.app import create_app
from rollmill_services.resources.counter.verifier import Counter


async def seeded(counter: Counter, initial: int) -> Session:
    row = {"initial_count": initial, "expected_count": 0}
    session = Session("s", row)
    await counter.seed_session(session, row)
    return session


async def call(counter: Counter, session: Session, tool: str, **arguments: object) -> JsonObject:
    answer: JsonObject = json.loads(await declared_tools(counter)[tool].call(session, arguments))
    return answer


async def test_increments_add_up_from_the_initial_count() -> None:
    counter = Counter()
    session = await seeded(counter, 3)

    assert await call(counter, session, "increment_counter", count=4) == {"success": True}
    assert await call(counter, session, "increment_counter", count=-2) == {"success": True}
    assert await call(counter, session, "get_counter_value") == {"count": 5}


@pytest.mark.parametrize(("expected", "reward"), [(5, 1.0), (4, 0.0), (-5, 0.0)])
async def test_the_reward_compares_the_final_count_with_the_expected_one(expected: int, reward: float) -> None:
    counter = Counter()
    session = await seeded(counter, 5)

    verdict = await counter.verify(Rollout({"expected_count": expected}), session)

    assert verdict.reward == reward
    assert verdict.details == {"final_count": 5}


async def test_sessions_do_not_share_their_counter() -> None:
    counter = Counter()
    first, second = await seeded(counter, 0), await seeded(counter, 10)

    await call(counter, first, "increment_counter", count=1)

    assert await call(counter, first, "get_counter_value") == {"count": 1}
    assert await call(counter, second, "get_counter_value") == {"count": 10}


async def test_a_session_that_was_never_seeded_counts_from_zero() -> None:
    counter, session = Counter(), Session("s", {})

    await call(counter, session, "increment_counter", count=2)

    assert await call(counter, session, "get_counter_value") == {"count": 2}


async def test_fields_may_stand_in_the_verifier_metadata() -> None:
    counter = Counter()
    row = {"verifier_metadata": {"initial_count": 7, "expected_count": 7}}
    session = Session("s", row)
    await counter.seed_session(session, row)

    assert (await counter.verify(Rollout(row), session)).reward == 1.0


async def test_a_counter_that_would_grow_beyond_exact_json_integers_refuses_and_keeps_its_value() -> None:
    counter = Counter()
    session = await seeded(counter, 2**53 - 2)

    with pytest.raises(ToolError, match="must stay between"):
        await call(counter, session, "increment_counter", count=2)

    assert await call(counter, session, "get_counter_value") == {"count": 2**53 - 2}


@pytest.mark.parametrize("arguments", [{}, {"count": "many"}, {"count": 1.5}, {"count": 1, "by": 2}])
async def test_wrong_arguments_are_an_error_that_the_model_can_read(arguments: JsonObject) -> None:
    counter = Counter()

    with pytest.raises(InputError, match="invalid arguments for increment_counter"):
        await declared_tools(counter)["increment_counter"].call(Session("s", {}), arguments)


@pytest.mark.parametrize("value", [None, True, "3", 3.0, 2**53, []])
async def test_a_count_that_is_missing_or_no_integer_is_an_error_that_names_it(value: object) -> None:
    counter = Counter()
    row = {"initial_count": value, "expected_count": value}

    with pytest.raises(InputError, match="initial_count"):
        await counter.seed_session(Session("s", row), row)
    with pytest.raises(InputError, match="expected_count"):
        await counter.verify(Rollout(row), await seeded(counter, 1))


def test_its_verdicts_need_the_live_session() -> None:
    assert Counter.reverify_mode == "unsupported"
    assert create_app(ServiceSettings(name="counter")).title
