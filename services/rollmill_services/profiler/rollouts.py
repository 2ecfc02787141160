from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.run_store import RunStore
from rollmill.contracts.json import JsonObject
from rollmill.errors import RunNotFoundError

if TYPE_CHECKING:
    from rollmill_services.profiler.rollout_index import RolloutIndex


class Rollouts:
    """Finds rollouts of runs. Every method reads and computes at once: call it in a thread.

    Args:
        store: where runs are found.
        max_followed: most runs whose tables are kept between requests.
    """

    def __init__(self, store: RunStore, *, max_followed: int = 4) -> None:
        self._store = store
        self._max_followed = max_followed
        self._followed: OrderedDict[RunFiles, RolloutIndex] = OrderedDict()
        self._lock = Lock()

    def page(
        self, run_id: str, *, filter: str | None, sort: str | None, text: str | None, offset: int, limit: int
    ) -> JsonObject:
        """Return some rollouts of a run, see `RolloutIndex.page`.

        Raises:
            RunNotFoundError: there is no such run, or it was never started.
            InputError: the filter or the column is wrong, or a file is damaged.
            DeadlineError: the search for a text took too long.
        """
        index = self._index(run_id)
        from rollmill_services.profiler.rollout_index import Asked

        return {
            "run_id": run_id,
            "offset": offset,
            **index.page(Asked(filter, sort, text), offset=offset, limit=limit),
        }

    def rollout(self, run_id: str, task: int, repeat: int) -> JsonObject:
        """Return one rollout, see `RolloutIndex.rollout`.

        Raises:
            RunNotFoundError: there is no such run, or it was never started.
            RolloutNotFoundError: the run has no such rollout, or it has not ended yet.
            InputError: a file is damaged.
        """
        return {"run_id": run_id, "task": task, "repeat": repeat, **self._index(run_id).rollout(task, repeat)}

    def timeline(self, run_id: str, *, buckets: int, agent: str | None) -> JsonObject:
        """Return how rewards came in over time, see `timeline`.

        Raises:
            RunNotFoundError: there is no such run, or it was never started.
            InputError: a file is damaged.
        """
        run = self._index(run_id).finished()
        from rollmill_services.profiler.timeline import timeline

        return {"run_id": run_id, **timeline(run, buckets=buckets, agent=agent)}

    def _index(self, run_id: str) -> "RolloutIndex":
        files = self._store.files(run_id)
        if not files.manifest.is_file():
            raise RunNotFoundError(f"the run {run_id!r} was never started", run_id=run_id)
        from rollmill_services.profiler.rollout_index import RolloutIndex

        with self._lock:
            index = self._followed.pop(files, None) or RolloutIndex(files)
            self._followed[files] = index
            while len(self._followed) > self._max_followed:
                self._followed.popitem(last=False)
        return index
