from pathlib import Path

import pytest

from rollmill.artifacts.manifest import Counts, Digests, Manifest, check_same_run, read_manifest
from rollmill.errors import ConflictError, InputError

DIGESTS = Digests(input="i", prompt="p", overrides="o", topology="t")


def test_a_manifest_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "x_manifest.json"
    manifest = Manifest(run_id="r", digests=DIGESTS, counts=Counts(expected=3, completed=2, failed=1), mean_reward=0.5)
    manifest.write(path)
    found = read_manifest(path)

    assert found is not None
    assert found.updated_at >= manifest.updated_at
    assert found.model_copy(update={"updated_at": manifest.updated_at}) == manifest
    assert list(tmp_path.iterdir()) == [path]


def test_no_file_is_no_manifest(tmp_path: Path) -> None:
    assert read_manifest(tmp_path / "gone.json") is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"run_id": 1}', '{"run_id": "r", "digests": {"input": 1}}'])
def test_a_file_that_is_no_manifest_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x_manifest.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"x_manifest\.json: not a manifest"):
        read_manifest(path)


def test_a_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"):
        read_manifest(tmp_path)


def test_the_same_digests_are_the_same_run() -> None:
    check_same_run(DIGESTS, DIGESTS.model_copy(), Path("m"))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("input", "the task file"),
        ("prompt", "the prompt config"),
        ("overrides", "repeats, seeds, limit, agent or request parameters"),
        ("topology", "the topology"),
    ],
)
def test_what_changed_is_named_and_nothing_else(field: str, words: str) -> None:
    with pytest.raises(ConflictError) as caught:
        check_same_run(DIGESTS, DIGESTS.model_copy(update={field: "other"}), Path("x_manifest.json"))

    assert f"this is another run: {words}" in str(caught.value)
    assert str(caught.value).count(";") == 0


def test_everything_that_changed_is_named_at_once() -> None:
    with pytest.raises(ConflictError, match=r"the task file; the prompt config; .*; the topology"):
        check_same_run(DIGESTS, Digests(input="a", overrides="b", topology="c"), Path("m"))


@pytest.mark.parametrize("known", ["old", "new"])
def test_a_topology_that_one_side_does_not_know_is_not_compared(known: str) -> None:
    unknown = DIGESTS.model_copy(update={"topology": None})
    old, new = (DIGESTS, unknown) if known == "old" else (unknown, DIGESTS)

    check_same_run(old, new, Path("m"))
