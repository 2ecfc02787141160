"""The file `x_metrics.parquet`. This module imports pyarrow: import it inside functions, not at start-up."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollmill.artifacts.column_arrays import Columns, Floats, Texts
from rollmill.artifacts.rollout_rows import AnswerFields
from rollmill.artifacts.writer import replacing
from rollmill.contracts.rows import ROLLOUT_INDEX, TASK_INDEX

_VERSION = 1
_METADATA = b"rollmill"
_GROUP_ROWS = 128 * 1024
_ENDS_BYTES = 4096

_TEXT = pa.dictionary(pa.int32(), pa.string())
_OWN = {
    TASK_INDEX: pa.int64(),
    ROLLOUT_INDEX: pa.int64(),
    "agent": _TEXT,
    "answer": _TEXT,
    "truncated": pa.bool_(),
    "turns": pa.float64(),
    "tool_errors": pa.float64(),
    "seconds": pa.float64(),
    "offset": pa.int64(),
}


class ColumnState(msgspec.Struct):
    """What a column file says about itself, in its metadata."""

    end: int
    """It covers the rollouts file up to here."""
    fingerprint: str
    answers: AnswerFields
    fields: list[str]
    """Names of the columns after our own, in order."""
    inexact: list[str]
    usage: list[str]
    refused: list[str]
    version: int = _VERSION


class ColumnFile:
    """A column file that agrees with its rollouts file.

    Args:
        file: the open file.
        state: what it says about itself.
    """

    def __init__(self, file: pq.ParquetFile, state: ColumnState) -> None:
        self._file = file
        self.state = state
        self.end = state.end
        """Offset in the rollouts file up to which it has the columns."""
        self.rows = file.metadata.num_rows

    def read(self) -> Columns:
        """Read all columns."""
        return _columns(self._file.read(), self.state)

    def groups(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read the file piece by piece, with the columns that `schema` adds at the end."""
        for group in range(self._file.num_row_groups):
            table = self._file.read_row_group(group)
            for added in list(schema)[table.num_columns :]:
                table = table.append_column(added, pa.nulls(table.num_rows, added.type))
            yield table.cast(schema)


def open_columns(path: Path, rollouts: Path, answers: AnswerFields) -> ColumnFile | None:
    """Open a column file; None when there is none, or it is damaged, or not made from this rollouts file.

    The rollouts file may have grown since; it is not the same any more when it shrank, or when the first or the last
    bytes that were read of it have changed.
    """
    try:
        file = pq.ParquetFile(path)
        state = msgspec.json.decode((file.schema_arrow.metadata or {}).get(_METADATA, b""), type=ColumnState)
    except (OSError, pa.ArrowException, msgspec.MsgspecError):
        return None
    same = state.version == _VERSION and state.answers == answers
    if not same or state.fingerprint != fingerprint(rollouts, state.end):
        return None
    return ColumnFile(file, state)


def write_columns(path: Path, rollouts: Path, old: ColumnFile | None, new: Columns, answers: AnswerFields) -> None:
    """Write a column file: the columns of the one that was there, and new ones after them.

    A reader, or a crash, sees the file as it was or as it is then.

    Raises:
        StorageError: it cannot be written.
    """
    state = ColumnState(
        end=new.end,
        fingerprint=fingerprint(rollouts, new.end),
        answers=answers,
        fields=list(dict.fromkeys([*(old.state.fields if old else ()), *new.fields])),
        inexact=sorted(new.inexact.union(old.state.inexact if old else ())),
        usage=sorted(new.usage.union(old.state.usage if old else ())),
        refused=[*(old.state.refused if old else ()), *new.refused],
    )
    schema = _schema(state)
    with replacing(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in old.groups(schema) if old else ():
            writer.write_table(table)
        writer.write_table(_table(new, schema, state.fields), row_group_size=_GROUP_ROWS)


def fingerprint(path: Path, end: int) -> str:
    """Return a digest of the beginning of a file and of what comes just before an offset; empty if it is shorter."""
    digest = blake2b(str(end).encode(), digest_size=16)
    try:
        with path.open("rb") as file:
            for start in (0, max(0, end - _ENDS_BYTES)):
                file.seek(start)
                data = file.read(min(_ENDS_BYTES, end - start))
                if len(data) < min(_ENDS_BYTES, end - start):
                    return ""
                digest.update(data)
    except OSError:
        return ""
    return digest.hexdigest()


def _schema(state: ColumnState) -> pa.Schema:
    own = list(_OWN.items())
    names = [f"field/{name}" if name in _OWN else name for name in state.fields]
    fields = [pa.field(name, kind) for name, kind in [*own, *((name, pa.float64()) for name in names)]]
    return pa.schema(fields, metadata={_METADATA: msgspec.json.encode(state)})


def _table(columns: Columns, schema: pa.Schema, fields: Sequence[str]) -> pa.Table:
    missing = np.full(len(columns), np.nan)
    own = [
        pa.array(columns.tasks),
        pa.array(columns.rollouts),
        _dictionary(columns.agents),
        _dictionary(columns.answers),
        pa.array(columns.truncated),
        *(pa.array(values, from_pandas=True) for values in (columns.turns, columns.tool_errors, columns.seconds)),
        pa.array(columns.offsets),
    ]
    numbers = [pa.array(columns.fields.get(name, missing), from_pandas=True) for name in fields]
    return pa.Table.from_arrays([*own, *numbers], schema=schema)


def _dictionary(texts: Texts) -> pa.Array:
    codes = pa.array(texts.codes, mask=texts.codes < 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(texts.names, pa.string()))


def _columns(table: pa.Table, state: ColumnState) -> Columns:
    arrays = iter(table.unify_dictionaries().columns)
    tasks, rollouts = (next(arrays).to_numpy() for _ in range(2))
    agents, answers = (_texts(next(arrays)) for _ in range(2))
    truncated = next(arrays).to_numpy()
    turns, tool_errors, seconds = (_floats(next(arrays)) for _ in range(3))
    return Columns(
        tasks=tasks,
        rollouts=rollouts,
        offsets=next(arrays).to_numpy(),
        agents=agents,
        answers=answers,
        truncated=truncated,
        turns=turns,
        tool_errors=tool_errors,
        seconds=seconds,
        fields={name: _floats(array) for name, array in zip(state.fields, arrays, strict=True)},
        inexact=frozenset(state.inexact),
        usage=frozenset(state.usage),
        refused=tuple(state.refused),
        end=state.end,
    )


def _floats(column: pa.ChunkedArray) -> Floats:
    values: Floats = column.to_numpy()
    return values


def _texts(column: pa.ChunkedArray) -> Texts:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # of an empty column
        array = pa.array([], _TEXT)
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return Texts(codes.astype(np.int32, copy=False), array.dictionary.to_pylist())
