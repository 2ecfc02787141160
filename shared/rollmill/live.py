"""A run that is asked about again and again while it goes on. It imports numpy: import it inside functions only."""

from threading import Lock

from rollmill.artifacts.columns import RunColumns
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.live import FollowedFile, LiveProfile
from rollmill.artifacts.manifest import read_manifest
from rollmill.contracts.json import JsonObject
from rollmill.profiling import RunTables, tables_of


class LiveRun:
    """Answers questions about a run as it stands, and reads for each only what is new. Threads may share it.

    Args:
        files: the run's files; none of them need be there yet.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._profile = LiveProfile(files)
        self._inputs = FollowedFile(files.inputs, "inputs")
        self._lock = Lock()

    def summary(self) -> JsonObject:
        """Return the statistics that are kept up to date, see `LiveProfile.summary`.

        Raises:
            InputError: a line is no rollout, or keys are duplicate.
        """
        with self._lock:
            self._profile.refresh()
            return self._profile.summary()

    def tables(self) -> RunTables:
        """Return what a `Profile` is made of.

        Raises:
            InputError: a line is no row with its keys; names file and line.
        """
        with self._lock:
            self._profile.refresh()
            self._inputs.refresh()
            rollouts = self._profile.columns().columns
            return tables_of(self._files.inputs, rollouts, self._inputs.columns(), read_manifest(self._files.manifest))

    def columns(self) -> RunColumns:
        """Return the columns of the rollouts.

        Raises:
            InputError: a line is no rollout; names file and line.
        """
        with self._lock:
            self._profile.refresh()
            return self._profile.columns()
