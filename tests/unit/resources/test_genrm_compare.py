import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from rollmill.context import CallContext, set_context
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.errors import InputError, JudgeFailedError, NotReadyError, OverloadedError, RollmillError, UpstreamError
from rollmill.openai import text_message
from rollmill.server.sessions import Session
from rollmill.testing import FakeModels, asgi_client, judge_answer
from rollmill.testing.models import Step
from rollmill_services.resources.genrm_compare.app import create_app
from rollmill_services.resources.genrm_compare.comparing import pairs
from rollmill_services.resources.genrm_compare.verifier import GenrmCompare, GenrmCompareSettings

SESSION = Session("s", {})
Better = Callable[[str, str], bool | RollmillError]


def longer(first: str, second: str) -> bool | RollmillError:
    return len(first) > len(second)


def judging_by(better: Better) -> FakeModels:
    """A judge that compares by a function, which says whether the first text is better than the second."""

    def judge(request: JsonObject) -> Step:
        prompt = request["input"][-1]["content"]
        first, second = (json.loads(text) for text in re.findall(r'^(?:First|Second) answer: (".*")$', prompt, re.M))
        verdicts = [better(first, second), better(second, first)]
        for verdict in verdicts:
            if isinstance(verdict, RollmillError):
                return verdict
        return judge_answer(request, *(bool(verdict) for verdict in verdicts))

    return FakeModels(judge)


@asynccontextmanager
async def comparing(better: Better = longer, **settings: JsonValue) -> AsyncIterator[GenrmCompare]:
    options = {"judge": "judge", "schedule": "all_pairs", "wait_seconds": 30.0, **settings}
    verifier = GenrmCompare(GenrmCompareSettings.model_validate(options))
    verifier.models = judging_by(better)
    await verifier.startup()
    try:
        yield verifier
    finally:
        await verifier.shutdown()


def rollout(text: str, place: int = 0, **fields: JsonValue) -> Rollout:
    params = {"input": "Write something long."}
    row: Row = {"responses_create_params": params, "_ng_rollout_index": place, **fields}
    return Rollout({**row, "response": {"output": [text_message(text)]}})


async def graded(verifier: GenrmCompare, *rollouts: Rollout) -> list[Verdict | RollmillError]:
    """Grade rollouts at once; an error in place of a verdict that was not given."""

    async def one(each: Rollout) -> Verdict | RollmillError:
        try:
            return await verifier.verify(each, SESSION)
        except RollmillError as error:
            return error

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(each)) for each in rollouts]
    return [task.result() for task in tasks]


def rewards(verdicts: list[Verdict | RollmillError]) -> list[float]:
    assert all(isinstance(verdict, Verdict) for verdict in verdicts), verdicts
    return [verdict.reward for verdict in verdicts if isinstance(verdict, Verdict)]


def held(verifier: GenrmCompare) -> int:
    return len(verifier._cohorts)


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_a_circle_has_each_answer_in_two_comparisons_and_all_pairs_has_each_pair_once(count: int) -> None:
    circle, every = pairs(count, "circular"), pairs(count, "all_pairs")

    assert len(set(every)) == len(every) == count * (count - 1) // 2
    assert set(circle) <= set(every)
    assert len(circle) == (1 if count == 2 else count)
    assert set(pairwise(range(count))) <= set(circle)


def test_what_was_compared_before_is_not_compared_again() -> None:
    assert pairs(4, "all_pairs", known=3) == [(0, 3), (1, 3), (2, 3)]
    assert pairs(4, "circular", known=3) == [(0, 3), (2, 3)]
    assert pairs(1, "all_pairs") == pairs(3, "all_pairs", known=3) == []


async def test_the_rollouts_of_a_task_wait_for_each_other_and_are_ranked() -> None:
    async with comparing(rollouts_per_task=4) as verifier:
        verdicts = await graded(verifier, *(rollout("x" * length) for length in (2, 4, 1, 3)))

    assert rewards(verdicts) == [1 / 3, 1.0, 0.0, 2 / 3]
    [first, *_] = verdicts
    assert isinstance(first, Verdict)
    assert first.details == {
        "comparisons": 3,
        "comparisons_won": 1,
        "comparisons_tied": 0,
        "comparisons_failed": 0,
        "compared_with": 3,
        "cohort_complete": True,
        "judge_tokens": 30,
        "judge_agreement": 1.0,
    }


async def test_a_circle_goes_by_the_rollout_index_whoever_came_first() -> None:
    async with comparing(rollouts_per_task=4, schedule="circular") as verifier:
        verdicts = await graded(verifier, *(rollout("x" * (place + 1), place) for place in (2, 0, 3, 1)))

    assert rewards(verdicts) == [0.5, 0.0, 1.0, 0.5]  # 3 beats 2 and 0, 0 loses to both


async def test_many_tasks_at_once_do_not_mix() -> None:
    async with comparing(rollouts_per_task=4) as verifier:
        tasks = [rollout("x" * (place + 1), place, question=str(task)) for place in range(4) for task in range(50)]
        verdicts = await graded(verifier, *tasks)
        assert held(verifier) == 0

    assert rewards(verdicts) == [place / 3 for place in range(4) for _ in range(50)]


async def test_a_missing_rollout_is_not_waited_for_longer_than_the_time() -> None:
    async with comparing(rollouts_per_task=4, wait_seconds=0.2) as verifier:
        verdicts = await graded(verifier, rollout("x"), rollout("xx"), rollout("xxx"))

    assert rewards(verdicts) == [0.0, 0.5, 1.0]
    assert {v.details["cohort_complete"] for v in verdicts if isinstance(v, Verdict)} == {False}
    assert {v.details["compared_with"] for v in verdicts if isinstance(v, Verdict)} == {2}


async def test_a_late_rollout_is_compared_with_those_that_were_there() -> None:
    async with comparing(rollouts_per_task=4, wait_seconds=0.5) as verifier:
        early = await graded(verifier, rollout("x"), rollout("xxx"))
        late = await graded(verifier, rollout("xx")) + await graded(verifier, rollout("xxxx"))

    assert rewards(early) == [0.0, 1.0]
    assert rewards(late) == [0.5, 1.0]
    assert [v.details["compared_with"] for v in late if isinstance(v, Verdict)] == [2, 3]


async def test_rollouts_beyond_the_number_form_a_group_of_their_own() -> None:
    async with comparing(rollouts_per_task=2, wait_seconds=0.2) as verifier:
        verdicts = await graded(verifier, *(rollout("x" * n) for n in (1, 2, 3)))

        assert rewards(verdicts[:2]) == [0.0, 1.0]
        [alone] = verdicts[2:]
        assert isinstance(alone, JudgeFailedError)
        assert (alone.extensions, alone.slug) == ({"boundary": "resources", "retryable": False}, "judge_failed")
        assert "no other rollout of this task came within 0.2 s" in alone.detail
        assert held(verifier) == 0


async def test_half_of_the_time_that_a_caller_has_left_is_kept_for_the_comparisons() -> None:
    set_context(CallContext().sooner(0.6))
    async with comparing(rollouts_per_task=3) as verifier:
        verdicts = await graded(verifier, rollout("x"), rollout("xx"))

    assert rewards(verdicts) == [0.0, 1.0]


async def test_a_rollout_whose_caller_leaves_is_not_counted() -> None:
    async with comparing(rollouts_per_task=2) as verifier:
        leaving = asyncio.create_task(verifier.verify(rollout("leaves"), SESSION))
        await asyncio.sleep(0)
        assert held(verifier) == 1
        leaving.cancel()
        await asyncio.wait([leaving])
        assert held(verifier) == 0

        verdicts = await graded(verifier, rollout("x"), rollout("xx"))

    assert rewards(verdicts) == [0.0, 1.0]


async def test_a_caller_that_leaves_during_the_comparisons_does_not_end_them() -> None:
    async with comparing(rollouts_per_task=2) as verifier:
        begun, go_on = asyncio.Event(), asyncio.Event()
        judge = verifier.models

        class Slow:
            async def respond(self, name: str, request: JsonObject) -> JsonObject:
                begun.set()
                await go_on.wait()
                return await judge.respond(name, request)

        verifier.models = Slow()
        leaving, staying = (asyncio.create_task(verifier.verify(rollout(text), SESSION)) for text in ("x", "xx"))
        await begun.wait()
        leaving.cancel()
        go_on.set()

        assert (await staying).reward == 1.0
        assert leaving.cancelled()


async def test_equal_answers_tie_and_a_judge_that_prefers_the_first_place_decides_nothing() -> None:
    async with comparing(rollouts_per_task=2) as verifier:
        equal = await graded(verifier, rollout("b"), rollout("a"))
    turns = iter([True, False] * 2)  # is the first better, is the second better, and both again turned round
    async with comparing(lambda _first, _second: next(turns), rollouts_per_task=2) as verifier:
        undecided = await graded(verifier, rollout("b"), rollout("a"))

    assert rewards(equal) == rewards(undecided) == [0.5, 0.5]
    assert [v.details["judge_agreement"] for v in equal if isinstance(v, Verdict)] == [1.0, 1.0]
    assert [v.details["judge_agreement"] for v in undecided if isinstance(v, Verdict)] == [0.0, 0.0]


async def test_an_empty_answer_loses_to_any_other_and_no_judge_is_asked() -> None:
    async with comparing(rollouts_per_task=3, judge="nobody") as verifier:
        verifier.models = FakeModels([UpstreamError("must not be asked")])
        verdicts = await graded(verifier, rollout(""), rollout("x"), rollout(" \n"))

    assert rewards(verdicts) == [0.25, 1.0, 0.25]
    assert not any("judge_agreement" in v.details for v in verdicts if isinstance(v, Verdict))


async def test_asked_once_a_pair_costs_one_call() -> None:
    async with comparing(rollouts_per_task=3, twice=False) as verifier:
        verdicts = await graded(verifier, rollout("x"), rollout("xx"), rollout("xxx"))
        assert isinstance(verifier.models, FakeModels)
        calls = len(verifier.models.asked)

    assert (rewards(verdicts), calls) == ([0.0, 0.5, 1.0], 3)


async def test_a_judge_that_is_down_fails_all_and_rewards_none() -> None:
    async with comparing(lambda _first, _second: UpstreamError("down"), rollouts_per_task=3) as verifier:
        verdicts = await graded(verifier, rollout("x"), rollout("xx"), rollout("xxx"))

        assert [type(verdict) for verdict in verdicts] == [JudgeFailedError] * 3
        assert {str(verdict) for verdict in verdicts} == {"the judge 'judge' failed: down"}
        verifier.models = judging_by(longer)
        assert rewards(await graded(verifier, rollout("x"), rollout("xx"), rollout("xxx"))) == [0.0, 0.5, 1.0]


async def test_a_comparison_that_fails_costs_only_itself() -> None:
    def stumbles(first: str, second: str) -> bool | RollmillError:
        return UpstreamError("stumbled") if {first, second} == {"x", "xx"} else len(first) > len(second)

    async with comparing(stumbles, rollouts_per_task=3) as verifier:
        verdicts = await graded(verifier, rollout("x"), rollout("xx"), rollout("xxx"))

    assert rewards(verdicts) == [0.0, 0.0, 1.0]
    assert [v.details["comparisons_failed"] for v in verdicts if isinstance(v, Verdict)] == [1, 1, 0]


async def test_a_rollout_that_could_not_be_compared_may_come_again() -> None:
    broken = {"xx"}

    def stumbles(first: str, second: str) -> bool | RollmillError:
        return UpstreamError("stumbled") if broken & {first, second} else len(first) > len(second)

    async with comparing(stumbles, rollouts_per_task=3) as verifier:
        verdicts = await graded(verifier, rollout("x"), rollout("xx"), rollout("xxx"))
        assert isinstance(verdicts[1], JudgeFailedError)
        again_broken = await graded(verifier, rollout("xx"))
        assert isinstance(again_broken[0], JudgeFailedError)
        broken.clear()
        again = await graded(verifier, rollout("xx"))

    assert rewards([verdicts[0], verdicts[2], *again]) == [0.0, 1.0, 0.5]


async def test_more_rollouts_than_may_wait_are_asked_to_come_again() -> None:
    async with comparing(rollouts_per_task=3, most_waiting=2, wait_seconds=0.3) as verifier:
        verdicts = await graded(verifier, *(rollout("x" * n) for n in (1, 2, 3)))

    assert rewards(verdicts[:2]) == [0.0, 1.0]
    assert isinstance(verdicts[2], OverloadedError)
    assert verdicts[2].retry_after == 2.0


async def test_what_is_kept_for_late_ones_is_bounded() -> None:
    async with comparing(rollouts_per_task=3, most_waiting=4, wait_seconds=0.1) as verifier:
        for task in range(5):
            await graded(verifier, *(rollout("x" * n, question=str(task)) for n in (1, 2)))

        assert sum(len(earlier.candidates) for earlier in verifier._cohorts._earlier.values()) <= 4


async def test_a_service_that_stops_tells_those_who_wait() -> None:
    async with comparing(rollouts_per_task=2) as verifier:
        waiting = asyncio.create_task(verifier.verify(rollout("x"), SESSION))
        await asyncio.sleep(0)

    with pytest.raises(NotReadyError, match="the service stops"):
        await waiting


async def test_of_an_answer_that_is_too_long_the_end_is_compared() -> None:
    async with comparing(lambda first, second: first > second, rollouts_per_task=2, longest_answer=100) as verifier:
        verdicts = await graded(verifier, rollout("z" * 1_000_000 + "a" * 100), rollout("b"))
        assert isinstance(verifier.models, FakeModels)
        shown = max(len(request["input"][-1]["content"]) for request in verifier.models.model.requests)

    assert rewards(verdicts) == [0.0, 1.0]
    assert shown < 2000


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"rollouts_per_task": 1}, "rollouts_per_task"),
        ({"rollouts_per_task": 65}, "rollouts_per_task"),
        ({"rollouts_per_task": True}, "rollouts_per_task"),
        ({"verifier_metadata": {"rollouts_per_task": "4"}}, "rollouts_per_task"),
        ({"principle": 3}, "principle"),
    ],
)
async def test_a_task_that_could_not_be_graded_is_refused_before_any_model_is_asked(row: Row, name: str) -> None:
    async with comparing() as verifier:
        with pytest.raises(InputError, match=name):
            await verifier.seed_session(SESSION, row)


async def test_the_number_may_stand_in_the_row() -> None:
    async with comparing(rollouts_per_task=4) as verifier:
        verdicts = await graded(verifier, *(rollout("x" * n, rollouts_per_task=2) for n in (1, 2)))

    assert rewards(verdicts) == [0.0, 1.0]


async def test_a_group_is_graded_over_http() -> None:
    app = create_app(GenrmCompareSettings(judge="judge", rollouts_per_task=2))
    async with asgi_client(app) as http:

        async def verify(text: str) -> JsonObject:
            seeded = await http.post("/seed_session", json={})
            session = {"x-rollmill-session": seeded.headers["x-rollmill-session"]}
            told: JsonObject = (await http.post("/verify", json=rollout(text).row, headers=session)).json()
            return told

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(verify(text)) for text in ("", "x")]

    assert [task.result()["reward"] for task in tasks] == [0.0, 1.0]
