import pytest

from rollmill.collection.outcomes import Assignment, Completed, Failed, failed_by, failure_line, read_outcome, timed
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.rows import RowKey
from rollmill.errors import DeadlineError, InputError, OverloadedError, RollmillError, UpstreamError

ROW: JsonObject = {
    "responses_create_params": {"input": "q"},
    "agent_ref": {"name": "a"},
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
}
ASSIGNMENT = Assignment(RowKey(3, 1), "a", ROW, dumps(ROW))


def outcome(**changes: JsonValue) -> Completed | Failed:
    return read_outcome(ASSIGNMENT, dumps({**ROW, **changes}))


def failed(found: Completed | Failed) -> Failed:
    assert isinstance(found, Failed)
    return found


@pytest.mark.parametrize("reward", [0.5, -2.0, 0, 1, True])
def test_a_finite_reward_completes_the_rollout(reward: float) -> None:
    found = outcome(reward=reward, extra=[1])

    assert isinstance(found, Completed)
    assert found.reward == float(reward)
    assert loads(found.line) == {**ROW, "reward": reward, "extra": [1]}


@pytest.mark.parametrize("reward", [None, "1", [1.0], {}])
def test_any_other_reward_fails_it(reward: JsonValue) -> None:
    found = failed(outcome(reward=reward))

    assert (found.failure.boundary, found.failure.type) == ("agent", "invalid-reward")
    assert not found.failure.retryable


def test_a_missing_reward_fails_it_and_never_counts_as_zero() -> None:
    assert failed(outcome()).failure.type == "invalid-reward"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
def test_a_reward_that_is_no_finite_number_fails_it(number: str) -> None:
    body = dumps(ROW)[:-1] + f',"reward":{number}}}'.encode()

    assert failed(read_outcome(ASSIGNMENT, body)).failure_class in ("invalid-answer", "invalid-reward")


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"reward": 1', b"\xff", b"[]", b"null", b'"text"'])
def test_an_answer_that_is_no_json_object_fails_it(body: bytes) -> None:
    assert failed(read_outcome(ASSIGNMENT, body)).failure.type == "invalid-answer"


@pytest.mark.parametrize(("attempt", "told"), [(1, 0), (2, 1), (1, None), (0, 1), (1, "1")])
def test_a_late_answer_of_another_attempt_fails_it(attempt: int, told: JsonValue) -> None:
    body = dumps({**ROW, "reward": 1.0, "_ng_attempt_index": told})
    found = failed(read_outcome(ASSIGNMENT, body, attempt=attempt))
    assert found.failure.type == "wrong-row"
    assert f"attempt {attempt}" in found.failure.detail


def test_the_answer_of_the_attempt_that_was_asked_for_completes_it_also_when_it_does_not_say_so() -> None:
    said = dumps({**ROW, "reward": 1.0, "_ng_attempt_index": 2})
    assert isinstance(read_outcome(ASSIGNMENT, said, attempt=2), Completed)
    assert isinstance(read_outcome(ASSIGNMENT, dumps({**ROW, "reward": 1.0}), attempt=2), Completed)
    retried = {**ROW, "_ng_attempt_index": 1}  # a stored row, graded again
    assert isinstance(
        read_outcome(Assignment(RowKey(3, 1), "a", retried, b""), dumps({**retried, "reward": 1})), Completed
    )


@pytest.mark.parametrize("change", [{"_ng_task_index": 4}, {"_ng_rollout_index": 0}, {"_ng_task_index": "3"}])
def test_the_row_of_another_rollout_fails_it(change: JsonObject) -> None:
    assert failed(outcome(reward=1, **change)).failure.type == "wrong-row"


@pytest.mark.parametrize("body", [{"reward": 1}, {"reward": 1, "agent_ref": None, "_ng_task_index": None}])
def test_keys_that_the_agent_dropped_are_filled_in(body: JsonObject) -> None:
    found = read_outcome(ASSIGNMENT, dumps(body))

    assert isinstance(found, Completed)
    assert loads(found.line) == {
        "reward": 1,
        "agent_ref": {"name": "a"},
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
    }


def test_an_answer_on_many_lines_becomes_one_line() -> None:
    body = dumps({**ROW, "reward": 1.0}).replace(b",", b",\n  ")
    found = read_outcome(ASSIGNMENT, body)

    assert isinstance(found, Completed)
    assert b"\n" not in found.line
    assert loads(found.line) == loads(body)


def test_a_failure_that_the_agent_classified_keeps_its_class_and_row() -> None:
    found = failed(outcome(_ng_failure_class="tool-crash", reward=0.0, note="x"))

    assert (found.failure_class, found.terminal, found.persist) == ("tool-crash", False, True)
    line = loads(failure_line(ASSIGNMENT, 2, found))
    assert line["note"] == "x"
    assert "reward" not in line
    assert "responses_create_params" not in line


@pytest.mark.parametrize("failure_class", [{}, {"_ng_failure_class": "hopeless"}])
def test_a_terminal_failure_is_terminal_with_or_without_a_class(failure_class: JsonObject) -> None:
    found = failed(outcome(_ng_failure_terminal=True, reward=1.0, **failure_class))

    assert (found.terminal, found.persist, found.failure.retryable) == (True, True, False)


def test_a_rollout_that_must_not_persist_is_a_failure_that_is_written_nowhere() -> None:
    found = failed(outcome(_ng_no_persist=True, reward=1.0))

    assert (found.terminal, found.persist) == (False, False)


def test_marks_that_are_false_do_not_fail_a_rollout() -> None:
    marks: JsonObject = {"_ng_failure_class": None, "_ng_failure_terminal": False, "_ng_no_persist": False}

    assert isinstance(outcome(reward=1.0, **marks), Completed)


@pytest.mark.parametrize(
    ("error", "boundary", "slug", "retryable"),
    [
        (OverloadedError("busy"), "agent", "overloaded", True),
        (DeadlineError("late", boundary="model"), "model", "deadline-passed", False),
        (InputError("bad", boundary="resources"), "resources", "invalid-request", False),
        (UpstreamError("x", boundary="model", upstream_type="overloaded", retryable=True), "model", "overloaded", True),
        (UpstreamError("x", boundary="nonsense", upstream_type=5), "agent", "upstream-failed", False),
    ],
)
def test_an_error_of_the_call_becomes_the_failure_of_who_caused_it(
    error: RollmillError, boundary: str, slug: str, retryable: bool
) -> None:
    found = failed_by(error)

    assert (found.failure.boundary, found.failure.type, found.failure.retryable) == (boundary, slug, retryable)
    assert (found.failure_class, found.terminal, found.persist, found.row) == (slug, False, True, None)


def test_a_failure_line_says_which_rollout_which_attempt_and_why() -> None:
    assert loads(failure_line(ASSIGNMENT, 1, failed_by(OverloadedError("x" * 5000)))) == {
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "_ng_attempt_index": 1,
        "agent_ref": {"name": "a"},
        "_ng_failure_class": "overloaded",
        "_ng_failure_terminal": False,
        "failure": {"boundary": "agent", "type": "overloaded", "detail": "x" * 2000, "retryable": True},
    }


def test_a_response_whose_grading_failed_is_part_of_the_failure_line() -> None:
    gained: JsonObject = {"response": {"output": []}, "note": "n", "reward": 1.0, "_ng_task_index": 9}
    found = failed_by(UpstreamError("x", boundary="resources", unverified=gained))

    line = loads(failure_line(ASSIGNMENT, 0, found))
    assert (line["response"], line["note"], line["_ng_task_index"]) == ({"output": []}, "n", 3)
    assert "reward" not in line
    assert failed_by(UpstreamError("x", unverified="nonsense")).unverified is None


@pytest.mark.parametrize("end", [b"", b"  "])
def test_the_note_of_how_long_it_took_is_spliced_into_the_line(end: bytes) -> None:
    body = dumps({**ROW, "reward": 1.0}) + end
    found = read_outcome(ASSIGNMENT, body)
    assert isinstance(found, Completed)

    noted = timed(found, seconds=1.23456, started_at=1754000000.98765, attempt=2)

    timing = {"seconds": 1.2346, "started_at": 1754000000.988, "attempt": 2}
    assert noted.line == body.rstrip()[:-1] + b',"_rollmill":' + dumps(timing) + b"}"
    assert loads(noted.line) == noted.row == {**ROW, "reward": 1.0, "_rollmill": timing}
    assert noted.reward == 1.0


def test_a_note_that_the_row_already_has_is_replaced() -> None:
    found = outcome(reward=1.0, _rollmill={"seconds": 9})
    assert isinstance(found, Completed)

    noted = timed(found, seconds=1.0, started_at=2.0, attempt=0)

    assert noted.line.count(b"_rollmill") == 1
    assert loads(noted.line)["_rollmill"] == {"seconds": 1.0, "started_at": 2.0, "attempt": 0}
