import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.contracts.attempts import AttemptId
from rollmill.contracts.runs import RUN_ID_PATTERN

NUMBERS = st.integers(0, 10**9 - 1)


@given(st.from_regex(RUN_ID_PATTERN.replace("$", r"\Z")), NUMBERS, NUMBERS, NUMBERS)
def test_an_attempt_is_read_back_as_it_was_written(run_id: str, task: int, rollout: int, attempt: int) -> None:
    attempt_id = AttemptId(run_id, task, rollout, attempt)

    assert AttemptId.parse(str(attempt_id)) == attempt_id


@pytest.mark.parametrize(
    "text",
    ["", "run", "run/1:2", "run/1:2/3/4", "run/1:2/-3", "a b/1:2/3", "r/1:2/3\n", "x" * 129 + "/1:2/3", "r/²:2/3"],
)
def test_any_other_text_is_none(text: str) -> None:
    assert AttemptId.parse(text) is None
