"""Grouped statistics and their JSON. This module imports pandas: import it inside functions, not at start-up."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from pandas import DataFrame, Series, concat

from rollmill.contracts.json import JsonObject, JsonValue

_CHUNK = 4096


def describe(fields: DataFrame, by: "Series[int] | Series[str]") -> DataFrame:
    """Compute `mean/f, max/f, min/f, median/f, std/f` of every column within each group.

    Args:
        fields: one row per rollout, NaN for a missing value, which every statistic skips.
        by: the group of each row; rows whose group is missing are left out.

    Returns:
        One row per group, sorted by group. `std` is the sample standard deviation (n - 1). Undefined values, and
        those beyond the range of doubles, are not finite, with one exception: in a group of a single rollout the
        std of every present field is 0.
    """
    groups = fields.groupby(by, sort=True, observed=True)
    sizes = groups.size()
    if fields.columns.empty:
        return DataFrame(index=sizes.index)
    with np.errstate(over="ignore", invalid="ignore"):  # a sum beyond the range of doubles is undefined
        parts = {
            "mean": groups.mean(),
            "max": groups.max(),
            "min": groups.min(),
            "median": groups.median(),
            "std": groups.std(),
        }
    # The rule is "when all std values of a group are undefined, fields with no missing value get 0". A field with
    # no missing value has a std as soon as there are two rollouts, so the rule speaks of single rollouts only.
    single = (sizes == 1).to_numpy()[:, np.newaxis]
    parts["std"] = parts["std"].mask(single & parts["max"].notna().to_numpy(), 0.0)
    return concat([part.add_prefix(f"{name}/") for name, part in parts.items()], axis=1)


def records(
    frame: DataFrame, integers: Collection[str] = (), labels: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Iterator[JsonObject]:
    """Yield each row of a numeric frame as a JSON object of plain numbers; undefined values are left out.

    Args:
        frame: numeric columns with distinct names.
        integers: names of float columns to be written as ints.
        labels: columns of text that come before those of the frame, each with a text for every row.
    """
    names = [*labels, *frame.columns]
    for start in range(0, len(frame), _CHUNK):
        chunk = frame.iloc[start : start + _CHUNK]
        if not names:
            yield from ({} for _ in range(len(chunk)))
            continue
        numbers = [_plain(chunk[name].to_numpy(), integer=name in integers) for name in frame.columns]
        complete = not any(None in column for column in numbers)
        columns = [*(texts[start : start + _CHUNK] for texts in labels.values()), *numbers]
        for values in zip(*columns, strict=True):
            pairs = zip(names, values, strict=True)
            yield dict(pairs) if complete else {name: value for name, value in pairs if value is not None}


def _plain(column: "np.ndarray[tuple[int], np.dtype[np.float64]]", *, integer: bool) -> list[float | None]:
    if np.isfinite(column).all():
        return list((column.astype(np.int64) if integer else column).tolist())
    cast = int if integer else float
    return [cast(value) if math.isfinite(value) else None for value in column.tolist()]


def defined(value: JsonValue) -> JsonValue:
    """Return a JSON value without the object members that are NaN or infinite, at any depth."""
    if isinstance(value, dict):
        return {name: defined(member) for name, member in value.items() if not _undefined(member)}
    if isinstance(value, list):
        return [defined(member) for member in value]
    return value


def _undefined(value: JsonValue) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
