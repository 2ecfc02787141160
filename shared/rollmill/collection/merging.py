"""Makes one run of the shards that several collections left."""

import glob
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.keys import KeySet
from rollmill.artifacts.likeness import compare_shards
from rollmill.artifacts.manifest import Counts, Digests, Manifest, read_manifest
from rollmill.artifacts.outputs import check_apart, make_way
from rollmill.artifacts.reader import iter_finished
from rollmill.artifacts.writer import replacing
from rollmill.collection.shard_parts import ShardParts
from rollmill.collection.stats import RunStats
from rollmill.contracts import rows
from rollmill.contracts.rows import Row, RowKey, agent_name, row_key, valid_reward
from rollmill.errors import ConflictError, InputError
from rollmill.ids import new_run_id

_KEYS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of a run."""

    files: RunFiles
    manifest: Manifest | None


def find_shards(pattern: str, output: Path) -> list[Shard]:
    """Return the runs whose rollouts files a pattern matches; their other files, and the output's, are no shards.

    Raises:
        InputError: nothing is matched, or a file beside a shard is not a manifest.
    """
    own = {path.resolve() for path in RunFiles.at(output).all()}
    found = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]
    shards = [path for path in found if path.suffix == ".jsonl" and path.is_file() and path.resolve() not in own]
    shards = [path for path in shards if not _is_beside_a_run(path)]
    if not shards:
        raise InputError(f"{pattern}: no rollouts file matches")
    return [Shard(files, read_manifest(files.manifest)) for files in map(RunFiles.at, shards)]


def merge_shards(shards: Sequence[Shard], output: Path, *, force: bool = False, overwrite: bool = False) -> "Merged":
    """Write the rollouts, input rows and failures of the shards as one run, with its manifest.

    An input row that several shards hold is written once. Memory grows with the number of keys only.

    Args:
        shards: what to merge, in this order.
        output: the rollouts file to write.
        force: merge shards although their manifests differ in more than their tasks.
        overwrite: replace a run that is there.

    Raises:
        InputError: a key occurs twice among the rollouts (the first ten), two shards have different input rows for
            one key, or a line is not a row with its keys. Nothing is written then.
        ConflictError: the shards are no parts of one run, and it is not forced; or the output exists.
    """
    files = RunFiles.at(output)
    merged = Merged(files, _warnings(shards, force=force))
    check_apart([path for shard in shards for path in shard.files.all()], files)
    _Check().run(shards)
    make_way(files, overwrite=overwrite)
    writing = _Writing(RunStats(new_run_id(output.stem)))
    writing.run(shards, files)
    merged.manifest = _manifest(shards, writing.stats)
    merged.manifest.write(files.manifest)
    return merged


@dataclass(slots=True)
class Merged:
    """A merged run."""

    files: RunFiles
    warnings: list[str]
    manifest: Manifest = field(default_factory=lambda: Manifest(run_id="", digests=Digests(input="", overrides="")))


def _is_beside_a_run(path: Path) -> bool:
    """Say whether a name is that of another run's further file, such as `x_failures.jsonl` beside `x.jsonl`."""
    for further in ("_materialized_inputs", "_failures", "_reward_profiling"):
        stem = path.stem.removesuffix(further)
        if stem and stem != path.stem:
            files = RunFiles(path.with_name(f"{stem}.jsonl"))
            return files.rollouts.exists() or files.manifest.exists()
    return False


def _warnings(shards: Sequence[Shard], *, force: bool) -> list[str]:
    told = [shard for shard in shards if shard.manifest is not None]
    warnings = [f"{shard.files.rollouts} has no manifest" for shard in shards if shard.manifest is None]
    warnings += [f"{shard.files.rollouts} is {_state(shard)}" for shard in told if _state(shard) != "finished"]
    unlike = []
    for shard in told[1:]:
        if told[0].manifest and shard.manifest:
            found = compare_shards(told[0].manifest, shard.manifest)
            pair = f"{told[0].files.rollouts} and {shard.files.rollouts}"
            unlike += [f"{pair} differ in {words}" for words in found.unlike]
            warnings += [f"{pair} differ in {words}" for words in found.notes]
    parts = ShardParts.of(shard.manifest.digests for shard in told if shard.manifest)
    if parts and parts.missing:
        first = ", ".join(map(str, parts.missing[:_KEYS_SHOWN]))
        more = ", ..." if len(parts.missing) > _KEYS_SHOWN else ""
        warnings.append(f"{len(parts.missing)} of {parts.count} shards are missing: {first}{more}")
    if unlike and not force:
        raise ConflictError(f"these are no parts of one run: {'; '.join(unlike)}. --force merges them anyway")
    return warnings + unlike


def _state(shard: Shard) -> str:
    return shard.manifest.state if shard.manifest is not None else "unknown"


class _Check:
    """Finds every key that occurs twice, before anything is written."""

    def __init__(self) -> None:
        self._rollouts = KeySet()
        self._twice: list[str] = []
        self._inputs = KeySet()
        self._shared = KeySet()

    def run(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            for key, _, row in _lines(shard.files.rollouts):
                if row.get(rows.REWARD) is None or not valid_reward(row[rows.REWARD]):
                    raise InputError(f"{shard.files.rollouts}: the reward of {key} must be a finite number")
                if not self._rollouts.add(key):
                    self._twice.append(f"{key} ({shard.files.rollouts.name})")
            for key, _, _ in _lines(shard.files.inputs):
                if not self._inputs.add(key):
                    self._shared.add(key)
        if self._twice:
            more = ", ..." if len(self._twice) > _KEYS_SHOWN else ""
            first = ", ".join(self._twice[:_KEYS_SHOWN])
            raise InputError(f"duplicate keys in the rollouts: {first}{more} ({len(self._twice)} in all)")
        self._compare_shared(shards)

    def _compare_shared(self, shards: Sequence[Shard]) -> None:
        known: dict[RowKey, bytes] = {}
        for shard in shards if len(self._shared) else ():
            for key, line, _ in _lines(shard.files.inputs):
                if key in self._shared and known.setdefault(key, _digest(line)) != _digest(line):
                    raise InputError(f"{shard.files.inputs}: another shard has another input row for the key {key}")


class _Writing:
    """Copies the lines of the shards, and counts what it copies."""

    def __init__(self, stats: RunStats) -> None:
        self.stats = stats
        self._finished = KeySet()
        self._failed = KeySet()
        self._inputs = KeySet()
        self._expected: dict[str, int] = {}

    def run(self, shards: Sequence[Shard], files: RunFiles) -> None:
        steps: list[tuple[str, Callable[[RowKey, Row], bool]]] = [
            ("inputs", self._input),
            ("rollouts", self._rollout),
            ("failures", self._failure),
        ]
        for name, take in steps:
            with replacing(getattr(files, name)) as file:
                for shard in shards:
                    for key, line, row in _lines(getattr(shard.files, name)):
                        if take(key, row):
                            file.write(line + b"\n")
        self._add_unwritten(shards)
        self.stats.expect(self._expected)

    def _input(self, key: RowKey, row: Row) -> bool:
        fresh = self._inputs.add(key)
        self._expect(agent_name(row) or "", fresh)
        return fresh

    def _rollout(self, key: RowKey, row: Row) -> bool:
        self._finished.add(key)
        agent = agent_name(row) or ""
        self.stats.completed(agent, float(row[rows.REWARD]))
        if key not in self._inputs:
            self._expect(agent, 1)
        return True

    def _failure(self, key: RowKey, row: Row) -> bool:
        if key not in self._finished and self._failed.add(key):
            self.stats.failed(agent_name(row) or "")
        return True

    def _add_unwritten(self, shards: Sequence[Shard]) -> None:
        """Expect also the rollouts of shards that were interrupted before all of their input rows were written."""
        for shard in shards:
            if shard.manifest is not None and shard.manifest.state != "finished":
                written = Counter(agent_name(row) or "" for _, _, row in _lines(shard.files.inputs))
                for name, agent in shard.manifest.agents.items():
                    self._expect(name, max(agent.expected - written[name], 0))

    def _expect(self, agent: str, count: int) -> None:
        self._expected[agent] = self._expected.get(agent, 0) + count


def _lines(path: Path) -> Iterator[tuple[RowKey, bytes, Row]]:
    """Yield the rows of a file, if it exists, each with its key and its own line."""
    if not path.exists():
        return
    for _, line, row in iter_finished(path):
        try:
            yield row_key(row), line, row
        except ValueError as error:
            raise InputError(f"{path}: a row of a run has a key: {error}") from None


def _digest(line: bytes) -> bytes:
    return sha256(line).digest()


def _manifest(shards: Sequence[Shard], stats: RunStats) -> Manifest:
    told = [shard.manifest for shard in shards if shard.manifest is not None]
    status = stats.status()
    parts = ShardParts.of(manifest.digests for manifest in told)
    complete = status.completed + status.failed >= status.expected and not (parts and parts.missing)
    finished = complete and all(manifest.state == "finished" for manifest in told)
    return Manifest(
        run_id=stats.run_id,
        created_at=min((manifest.created_at for manifest in told), default=stats.created_at),
        state="finished" if finished else "interrupted",
        digests=_digests([manifest.digests for manifest in told], whole=finished),
        counts=Counts(expected=status.expected, completed=status.completed, failed=status.failed),
        mean_reward=status.mean_reward,
        agents=status.agents,
        tokens=sum(manifest.tokens for manifest in told),
        wall_seconds=sum(manifest.wall_seconds for manifest in told),
        verifiers={agent: verifier for manifest in told for agent, verifier in manifest.verifiers.items()},
        scoring={agent: scoring for manifest in told for agent, scoring in manifest.scoring.items()},
    )


def _digests(parts: list[Digests], *, whole: bool) -> Digests:
    """Return what the merged run is: all shards, when finished, are the very run that was parted."""
    numbered = ShardParts.of(parts)
    shard = str(numbered) if numbered else _joined([part.shard for part in parts])
    return Digests(
        input=_joined([part.input for part in parts]) or "",
        prompt=_joined([part.prompt for part in parts]),
        overrides=_joined([part.overrides for part in parts]) or "",
        topology=_joined([part.topology for part in parts]),
        shard=None if numbered and whole else shard,
    )


def _joined(digests: list[str | None]) -> str | None:
    """Return the digest that all have; where they differ, one that the same shards in another order give too."""
    found = sorted({digest for digest in digests if digest is not None})
    if len(found) <= 1:
        return found[0] if found else None
    return sha256("\n".join(found).encode()).hexdigest()
