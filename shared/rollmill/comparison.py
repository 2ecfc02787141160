"""Two runs set side by side, from their files: what the command line and the profiler share."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.likeness import Differences, compare_manifests
from rollmill.artifacts.manifest import Manifest, read_manifest
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import REWARD
from rollmill.errors import ConflictError, InputError

if TYPE_CHECKING:
    from pandas import DataFrame


def compare_files(a: RunFiles, b: RunFiles, *, force: bool = False, seed: int = 0) -> JsonObject:
    """Compare two runs, agent by agent, over the tasks that both have.

    Args:
        a: the run that the other one is measured against.
        b: the other one.
        force: compare although their datasets or verifiers differ.
        seed: of the bootstrap.

    Returns:
        `agents`: by name, the result of `rollmill.metrics.compare.compare_runs`; `only_a` and `only_b`: agents of one
        run only; `notes`: what else is different; `forced`: what should not be; `a` and `b`: what the runs are.

    Raises:
        ConflictError: their manifests differ in dataset or verifier, and it is not forced.
        InputError: a file cannot be read or is damaged, or no agent is in both.
    """
    from rollmill.artifacts.columns import read_columns
    from rollmill.metrics.compare import compare_runs

    manifests = read_manifest(a.manifest), read_manifest(b.manifest)
    found = _differences(a, b, *manifests)
    if found.unlike and not force:
        raise ConflictError(
            f"these runs measure different things, they differ in {'; '.join(found.unlike)}", differences=found.unlike
        )
    one, other = split_by_agent(read_columns(a).frame), split_by_agent(read_columns(b).frame)
    common = sorted(one.keys() & other.keys())
    if not common:
        names = [f"{', '.join(own) or 'none'} in {files.rollouts}" for own, files in ((one, a), (other, b))]
        raise InputError(f"no agent is in both runs: {'; '.join(names)}")
    return {
        "a": _described(a, manifests[0], one),
        "b": _described(b, manifests[1], other),
        "notes": found.notes,
        "forced": found.unlike,
        "only_a": sorted(one.keys() - other.keys()),
        "only_b": sorted(other.keys() - one.keys()),
        "agents": {
            agent: compare_runs(
                one[agent],
                other[agent],
                score_field=_score_field(manifests, (one[agent], other[agent]), agent),
                seed=seed,
            )
            for agent in common
        },
    }


def split_by_agent(frame: "DataFrame") -> "dict[str, DataFrame]":
    """Return the rollouts of each agent, by name in order; those that name no agent are under the empty name."""
    names = frame["agent"].astype(object)
    return {str(name): group for name, group in frame.groupby(names.where(names.notna(), ""), sort=True)}


def _differences(a: RunFiles, b: RunFiles, one: Manifest | None, other: Manifest | None) -> Differences:
    if one is not None and other is not None:
        return compare_manifests(one, other)
    without = [str(files.manifest) for files, manifest in ((a, one), (b, other)) if manifest is None]
    return Differences(notes=[f"dataset and verifier, as far as is known: there is no {' and no '.join(without)}"])


def _score_field(manifests: Iterable[Manifest | None], frames: Iterable["DataFrame"], agent: str) -> str:
    told = (manifest.score_field(agent) for manifest in manifests if manifest is not None)
    return next((name for name in told if all(name in frame for frame in frames)), REWARD)


def _described(files: RunFiles, manifest: Manifest | None, agents: "dict[str, DataFrame]") -> JsonObject:
    return {
        "run_id": manifest.run_id if manifest else None,
        "state": manifest.state if manifest else None,
        "file": files.rollouts.name,
        "rollouts": sum(map(len, agents.values())),
    }
