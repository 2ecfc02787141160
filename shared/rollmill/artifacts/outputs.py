"""What is done about files that are already where a run is to be written."""

from collections.abc import Iterable
from pathlib import Path

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Manifest, read_manifest
from rollmill.artifacts.writer import close_appended, open_for_append
from rollmill.errors import ConflictError, InputError


def check_apart(sources: Iterable[Path], output: RunFiles) -> None:
    """Refuse to write over what is read.

    Raises:
        InputError: a source is one of the files of the output.
    """
    written = [path.resolve() for path in output.all()]
    for source in sources:
        if source.resolve() in written:
            raise InputError(f"{source} is one of the files that the run writes; choose another output")


def run_to_go_on_with(files: RunFiles, *, resume: bool, overwrite: bool) -> Manifest | None:
    """Make way for a fresh run and return None, or return the manifest of the run to go on with.

    Raises:
        ConflictError: there is a run, and it is neither to be resumed nor to be replaced; or another process is
            writing it; or it has no manifest.
        InputError: its manifest is not one.
    """
    present = _present(files)
    if overwrite or not present:
        make_way(files, overwrite=overwrite)
        return None
    if not resume:
        raise ConflictError(
            f"{present[0]} exists; go on with it (--resume), replace it (--overwrite), or choose another output"
        )
    try:
        manifest = read_manifest(files.manifest)
    except InputError as error:
        raise InputError(f"{error.detail}; bring back a whole one, or replace the run (--overwrite)") from None
    if manifest is None:
        raise ConflictError(
            f"{files.manifest} is missing, so nobody can tell which run {present[0].name} belongs to; "
            "replace it (--overwrite) or choose another output"
        )
    return manifest


def make_way(files: RunFiles, *, overwrite: bool) -> None:
    """Delete a run that is there.

    Raises:
        ConflictError: there is one, and it is not to be replaced, or another process is writing it.
    """
    present = _present(files)
    if not present:
        return
    if not overwrite:
        raise ConflictError(f"{present[0]} exists; replace it (--overwrite), or choose another output")
    fd, _ = open_for_append(files.rollouts)
    try:
        # The locked one goes last: once it is gone, another process may begin a run of its own here.
        for path in [*(path for path in present if path != files.rollouts), files.rollouts]:
            path.unlink(missing_ok=True)
    finally:
        close_appended(files.rollouts, fd)


def _present(files: RunFiles) -> list[Path]:
    return [path for path in files.all() if path.exists() and path.stat().st_size]
