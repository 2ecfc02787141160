"""Whether two runs may be set side by side, or be made one, as their manifests tell."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rollmill.artifacts.manifest import Digests, Manifest, Verifier

_DATASET = {"input": "the dataset (the task file)"}
_HOW = {
    "prompt": "the prompt config",
    "overrides": "repeats, seeds, limit, agent or request parameters",
    "topology": "the topology (services or their settings)",
}
_PART = {"shard": "the shard"}


@dataclass(slots=True)
class Differences:
    """What is not the same in two runs, in words."""

    unlike: list[str] = field(default_factory=list)
    """What makes the result meaningless."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know."""


def compare_manifests(a: Manifest, b: Manifest) -> Differences:
    """Tell whether two runs measure the same thing: other models and sampling may be compared, other tasks may not."""
    return Differences([*_digests(a, b, _DATASET), *_verifiers(a, b)], list(_digests(a, b, _HOW | _PART)))


def compare_shards(a: Manifest, b: Manifest) -> Differences:
    """Tell whether two runs may be parts of one: they have other tasks, and everything else is the same.

    Parts that have a number are of one task file, which was parted into as many.
    """
    unlike = [*_digests(a, b, _HOW), *_verifiers(a, b), *_scorings(a, b)]
    if a.digests.shard and b.digests.shard:
        unlike += _digests(a, b, _DATASET)
    if _parted_into(a) != _parted_into(b):
        unlike.append("the number of shards")
    versions = {a.rollmill_version, b.rollmill_version}
    notes = [f"Rollmill's version ({' and '.join(sorted(versions))})"] if len(versions) > 1 else []
    return Differences(unlike, notes)


def _digests(a: Manifest, b: Manifest, names: dict[str, str]) -> Iterator[str]:
    for name, words in names.items():
        if _known(a.digests, name) and _known(b.digests, name) and _value(a.digests, name) != _value(b.digests, name):
            yield words


def _parted_into(manifest: Manifest) -> str:
    return (manifest.digests.shard or "").partition("/")[2]


def _known(digests: Digests, name: str) -> bool:
    return name != "topology" or digests.topology is not None


def _value(digests: Digests, name: str) -> str | None:
    value: str | None = getattr(digests, name)
    return value


def _verifiers(a: Manifest, b: Manifest) -> Iterator[str]:
    for agent in _in_both(a.verifiers, b.verifiers):
        one, other = a.verifiers[agent], b.verifiers[agent]
        if changed := "; ".join(_changed(one, other)):
            yield f"the verifier of {agent} ({changed})"


def _changed(one: Verifier, other: Verifier) -> Iterator[str]:
    """A server may be renamed; its name counts only where nothing better is known."""
    names = ("name", "version", "digest") if one.name and other.name else ("resources",)
    for name in names:
        before, after = getattr(one, name), getattr(other, name)
        if before and after and before != after:
            yield "its code" if name == "digest" else f"{before} and {after}"


def _scorings(a: Manifest, b: Manifest) -> Iterator[str]:
    for agent in _in_both(a.scoring, b.scoring):
        if a.scoring[agent] != b.scoring[agent]:
            yield f"the score or answer fields of {agent}"


def _in_both(a: Iterable[str], b: Iterable[str]) -> list[str]:
    return sorted(set(a) & set(b))
