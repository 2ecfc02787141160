import re
from collections.abc import Iterator
from pathlib import Path

from rollmill.artifacts.files import RunFiles
from rollmill.contracts.runs import RUN_ID_PATTERN
from rollmill.errors import InputError, RunNotFoundError

_RUN_ID = re.compile(RUN_ID_PATTERN)
_IN_FOLDER = "rollouts.jsonl"
_MANIFEST = "_manifest.json"


class RunStore:
    """Where the services keep runs: one folder each, `<data_dir>/<run id>/rollouts.jsonl` and its siblings.

    A run that the command line wrote beside them, `<data_dir>/x.jsonl`, is found as run `x`.

    Args:
        data_dir: need not exist yet; nothing is created here.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def files(self, run_id: str) -> RunFiles:
        """Name the files of a run. A folder without a manifest is a run that has not been started yet.

        Raises:
            InputError: this cannot be a run id, or links lead out of the data directory.
            RunNotFoundError: there is no such run.
        """
        if not _RUN_ID.fullmatch(run_id):
            raise InputError(f"{run_id[:200]!r} is no run id: up to 128 letters, digits, dots, dashes and underscores")
        places = self._in_folder(run_id), RunFiles(self.data_dir / f"{run_id}.jsonl")
        for files in places:
            if files.manifest.is_file():
                return self._inside(files)
        if places[0].rollouts.parent.is_dir():
            return self._inside(places[0])
        raise RunNotFoundError(f"no run is called {run_id!r}", run_id=run_id)

    def runs(self) -> list[str]:
        """Return the ids of all runs that were started, sorted."""
        return sorted(set(self._ids()))

    def resolve(self, path: str) -> Path:
        """Return the file that a client names, relative to the data directory or absolute, symbolic links followed.

        Whether it exists is not checked.

        Raises:
            InputError: the path leads out of the data directory.
        """
        try:
            root = self.data_dir.resolve()
            found = (root / path).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a null byte
            raise InputError(f"{path[:200]!r} is no usable path: {error}") from None
        if ".." in Path(path).parts or root not in found.parents:
            raise InputError(
                f"{path[:200]!r} is not inside the data directory: put the file there and name it relative to that"
            )
        return found

    def _inside(self, files: RunFiles) -> RunFiles:
        root = self.data_dir.resolve()
        linked = [path for path in (files.rollouts.parent, *files.all()) if path.is_symlink()]
        for path in linked:
            if root not in path.resolve().parents:
                raise InputError(f"{path.name!r} of this run is a link that leads out of the data directory")
        return files

    def _in_folder(self, run_id: str) -> RunFiles:
        return RunFiles(self.data_dir / run_id / _IN_FOLDER)

    def _ids(self) -> Iterator[str]:
        if not self.data_dir.is_dir():
            return
        for entry in self.data_dir.iterdir():
            flat = entry.name.endswith(_MANIFEST)
            run_id = entry.name.removesuffix(_MANIFEST)
            started = entry.is_file() if flat else self._in_folder(run_id).manifest.is_file()
            if started and _RUN_ID.fullmatch(run_id):
                yield run_id
