import pytest

from rollmill.artifacts.likeness import compare_manifests
from rollmill.artifacts.manifest import Digests, Manifest, Verifier
from rollmill.contracts.json import JsonObject

VERIFIER = Verifier(resources="words", name="m:Words", version="1", digest="d")
DIGESTS = Digests(input="i", prompt="p", overrides="o", topology="t")


def manifest(digests: JsonObject | None = None, **verifiers: Verifier) -> Manifest:
    return Manifest(
        run_id="r", digests=DIGESTS.model_copy(update=digests or {}), verifiers=verifiers or {"solver": VERIFIER}
    )


def changed(**fields: str) -> Manifest:
    return manifest(solver=VERIFIER.model_copy(update=fields))


def test_two_runs_of_the_same_are_alike() -> None:
    found = compare_manifests(manifest(), manifest())

    assert (found.unlike, found.notes) == ([], [])


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (manifest({"input": "j"}), "the dataset (the task file)"),
        (changed(name="m:Other"), "the verifier of solver (m:Words and m:Other)"),
        (changed(version="2"), "the verifier of solver (1 and 2)"),
        (changed(digest="e"), "the verifier of solver (its code)"),
        (changed(version="2", digest="e"), "the verifier of solver (1 and 2; its code)"),
        (changed(name="", version="", digest="", resources="sums"), "the verifier of solver (words and sums)"),
    ],
)
def test_another_dataset_or_verifier_makes_runs_unlike(other: Manifest, told: str) -> None:
    assert compare_manifests(manifest(), other).unlike == [told]
    assert len(compare_manifests(other, manifest()).unlike) == 1


@pytest.mark.parametrize(
    ("digests", "told"),
    [
        ({"prompt": None}, "the prompt config"),
        ({"overrides": "x"}, "repeats, seeds, limit, agent or request parameters"),
        ({"topology": "x"}, "the topology (services or their settings)"),
    ],
)
def test_how_the_tasks_were_run_may_differ_and_is_noted(digests: JsonObject, told: str) -> None:
    found = compare_manifests(manifest(), manifest(digests))

    assert (found.unlike, found.notes) == ([], [told])


@pytest.mark.parametrize(
    "other",
    [
        manifest({"topology": None}),
        changed(resources="renamed"),
        changed(version=""),
        changed(digest=""),
        manifest(another=Verifier(resources="x")),
    ],
)
def test_what_is_not_known_or_only_renamed_is_no_difference(other: Manifest) -> None:
    found = compare_manifests(manifest(), other)

    assert (found.unlike, found.notes) == ([], [])
