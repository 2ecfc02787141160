"""Choosing tasks by what their rollouts earned, e.g. `0.1 < mean_reward < 0.9 and num_rollouts >= 4`."""

import difflib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from rollmill.contracts.rows import REWARD, ROLLOUT_INDEX, TASK_INDEX
from rollmill.errors import InputError
from rollmill.metrics.filter_grammar import Both, Comparison, Constant, Name, Node, Not, Operand, Sign, fault, parse

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame, Series

    Mask: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    Values: TypeAlias = (
        np.ndarray[tuple[int, ...], np.dtype[np.float64]] | np.ndarray[tuple[int, ...], np.dtype[np.object_]]
    )

STATISTICS: Final = ("mean", "max", "min", "median", "std")
"""What is known of each numeric field of a task; the column is `mean_reward`, and may be written `mean/reward`."""
COLUMNS: Final = ("task", "agent", "num_rollouts", "pass_rate")
"""Columns of a task frame besides its statistics."""
_NOT_FIELDS: Final = frozenset({TASK_INDEX, ROLLOUT_INDEX, "agent", "answer"})

_UFUNCS: Final[dict[Sign, str]] = {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "==": "equal",
    "!=": "not_equal",
}


class TaskFilter:
    """A filter expression, parsed.

    Args:
        text: the expression.

    Raises:
        InputError: it is not one; tells the position, with a caret under it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._node = parse(text)

    @property
    def fields(self) -> set[str]:
        """The columns that it looks at, spelled as in the task frame."""
        return {_column(name.name) for name in _names(self._node)}

    def check(self, known: Collection[str]) -> None:
        """Refuse a name that is no column.

        Raises:
            InputError: tells the position, what may have been meant, and what there is.
        """
        for name in _names(self._node):
            if _column(name.name) not in known:
                raise self._unknown(name, known)

    def mask(self, task_frame: "DataFrame") -> "Series[bool]":
        """Say for each task whether it is chosen.

        Every comparison with a missing value is false, also `!=`.

        Args:
            task_frame: one row per task, see `task_frame`.

        Returns:
            A boolean for each row, with the frame's index.

        Raises:
            InputError: a name is no column, or a number is compared with a text.
        """
        from pandas import Series

        self.check(list(task_frame.columns))
        return Series(self._evaluate(self._node, task_frame), index=task_frame.index, dtype=bool)

    def _evaluate(self, node: Node, frame: "DataFrame") -> "Mask":
        import numpy as np

        if isinstance(node, Comparison):
            return self._compare(node, frame)
        if isinstance(node, Not):
            return ~self._evaluate(node.operand, frame)
        masks = [self._evaluate(operand, frame) for operand in node.operands]
        found: Mask = np.all(masks, axis=0) if node.word == "and" else np.any(masks, axis=0)
        return found

    def _compare(self, node: Comparison, frame: "DataFrame") -> "Mask":
        import numpy as np
        from pandas import notna

        values = [_values(operand, frame) for operand in node.operands]
        found = np.ones(len(frame), dtype=bool)
        for left, right, sign, start in zip(values, values[1:], node.signs, node.starts, strict=False):
            self._check_kinds(left, right, sign, start)
            compared = getattr(np, _UFUNCS[sign])(left, right)
            found &= compared.astype(bool) & notna(left) & notna(right)
        return found

    def _check_kinds(self, left: "Values", right: "Values", sign: Sign, start: int) -> None:
        text = left.dtype == object, right.dtype == object
        if text[0] != text[1]:
            raise fault(self.text, start, "a number and a text cannot be compared")
        if all(text) and sign not in ("==", "!="):
            raise fault(self.text, start, "texts are compared with `==` and `!=` only")

    def _unknown(self, name: Name, known: Collection[str]) -> InputError:
        mean = f"mean_{name.name}"
        near = [mean] if mean in known else difflib.get_close_matches(_column(name.name), known, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        return fault(self.text, name.start, f"unknown name {name.name!r}{meant}", hint=_told(known))


def parse_filter(text: str) -> TaskFilter:
    """Parse a filter expression.

    Raises:
        InputError: it is not one; tells the position, with a caret under it.
    """
    return TaskFilter(text)


def column_names(frame: "DataFrame") -> list[str]:
    """Return the columns that the task frame of a rollout frame has."""
    return [*COLUMNS, *(f"{statistic}_{field}" for field in _numeric(frame) for statistic in STATISTICS)]


def task_frame(
    frame: "DataFrame", *, only: Collection[str] | None = None, score_field: str = REWARD, correct_at: float = 1.0
) -> "DataFrame":
    """Sum up rollouts by task.

    Args:
        frame: one row per finished rollout.
        only: compute no other statistics than these columns; all when None.
        score_field: the field that says whether a rollout is correct.
        correct_at: a rollout is correct when its score is at least this.

    Returns:
        One row per task, by number: `task`; `agent`, that of its first rollout; `num_rollouts`; `pass_rate`, the share
        of its scored rollouts that are correct, in 0 to 1; and `mean_f`, `max_f`, `min_f`, `median_f` and `std_f` of
        each numeric field f, as in the classic profile. NaN stands for what is undefined.
    """
    from pandas import DataFrame

    from rollmill.metrics.describe import describe

    ordered = frame.sort_values([TASK_INDEX, ROLLOUT_INDEX], ignore_index=True)
    tasks = ordered[TASK_INDEX]
    groups = tasks.groupby(tasks, sort=True)
    agents = ordered["agent"].astype(object).groupby(tasks, sort=True).nth(0)
    counts = groups.size()
    result = DataFrame(
        {
            "task": counts.index.to_numpy(),
            "agent": agents.to_numpy(),
            "num_rollouts": counts.to_numpy(),
            "pass_rate": _pass_rate(ordered, score_field, correct_at),
        }
    )
    statistics = describe(ordered[_needed(ordered, only)].astype(float), tasks)
    return result.join(statistics.rename(columns=_column).reset_index(drop=True))


def choose_tasks(frame: "DataFrame", chosen: TaskFilter, *, score_field: str = REWARD) -> list[int]:
    """Return the numbers of the tasks that a filter chooses, in order.

    Args:
        frame: one row per finished rollout.
        chosen: the filter.
        score_field: the field that says whether a rollout is correct.

    Raises:
        InputError: the filter names what the rollouts do not have, or compares a number with a text.
    """
    chosen.check(column_names(frame))
    tasks = task_frame(frame, only=chosen.fields, score_field=score_field)
    numbers: list[int] = tasks.loc[chosen.mask(tasks), "task"].tolist()
    return numbers


def _pass_rate(
    frame: "DataFrame", score_field: str, correct_at: float
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    import numpy as np

    scores = frame[score_field].astype(float) if score_field in frame else frame[TASK_INDEX] * np.nan
    correct = (scores >= correct_at).astype(float).where(scores.notna())
    return np.asarray(correct.groupby(frame[TASK_INDEX], sort=True).mean(), dtype=np.float64)


def _numeric(frame: "DataFrame") -> list[str]:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return [
        name
        for name, dtype in frame.dtypes.items()
        if isinstance(name, str) and name not in _NOT_FIELDS and (is_numeric_dtype(dtype) or is_bool_dtype(dtype))
    ]


def _needed(frame: "DataFrame", only: Collection[str] | None) -> list[str]:
    fields = _numeric(frame)
    if only is None:
        return fields
    return [field for field in fields if any(f"{statistic}_{field}" in only for statistic in STATISTICS)]


def _column(name: str) -> str:
    """Return how the task frame spells a name: `mean/reward` is `mean_reward`."""
    statistic, slash, field = name.partition("/")
    return f"{statistic}_{field}" if slash and statistic in STATISTICS else name


def _names(node: Node) -> Iterator[Name]:
    """Yield the names of an expression, from left to right."""
    if isinstance(node, Comparison):
        yield from (operand for operand in node.operands if isinstance(operand, Name))
    elif isinstance(node, Not):
        yield from _names(node.operand)
    elif isinstance(node, Both):
        for operand in node.operands:
            yield from _names(operand)


def _values(operand: Operand, frame: "DataFrame") -> "Values":
    """Return an operand as an array: floats, or objects for texts."""
    import numpy as np
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if isinstance(operand, Constant):
        kind = object if isinstance(operand.value, str) else np.float64
        return np.full(len(frame), operand.value, dtype=kind)
    column = frame[_column(operand.name)]
    if is_numeric_dtype(column.dtype) or is_bool_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return column.to_numpy(dtype=object)


def _told(known: Collection[str]) -> str:
    """List columns in few words: those that all statistics share are told once."""
    heads = tuple(f"{statistic}_" for statistic in STATISTICS)
    fields = dict.fromkeys(name.partition("_")[2] for name in known if name.startswith(heads))
    plain = [name for name in known if not name.startswith(heads)]
    shared = f"; {', '.join(heads)} of {', '.join(fields)}" if fields else ""
    return f"there is {', '.join(plain)}{shared}"
