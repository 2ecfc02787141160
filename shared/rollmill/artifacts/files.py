from dataclasses import dataclass
from pathlib import Path

from rollmill.errors import InputError


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of one run; all names derive from the output path."""

    rollouts: Path

    @classmethod
    def at(cls, output: str | Path) -> "RunFiles":
        """Name the files for an output path.

        Raises:
            InputError: the path does not end in `.jsonl`.
        """
        path = Path(output)
        if path.suffix != ".jsonl" or not path.stem:
            raise InputError(f"the output must be a .jsonl file, got {str(output)!r}")
        return cls(path)

    def _sibling(self, suffix: str) -> Path:
        return self.rollouts.with_name(self.rollouts.stem + suffix)

    @property
    def inputs(self) -> Path:
        """Every expanded row, in expansion order."""
        return self._sibling("_materialized_inputs.jsonl")

    @property
    def failures(self) -> Path:
        """One line for each failed attempt."""
        return self._sibling("_failures.jsonl")

    @property
    def aggregate_metrics(self) -> Path:
        """Statistics per agent, written when the run ends."""
        return self._sibling("_aggregate_metrics.json")

    @property
    def reward_profiling(self) -> Path:
        """Statistics per task, written by `profile`."""
        return self._sibling("_reward_profiling.jsonl")

    @property
    def agent_metrics(self) -> Path:
        """Statistics per agent, written by `profile`."""
        return self._sibling("_agent_metrics.json")

    @property
    def manifest(self) -> Path:
        """What the run is and how far it got."""
        return self._sibling("_manifest.json")

    @property
    def metrics_parquet(self) -> Path:
        """The numbers of the finished rollouts as columns, made from `x.jsonl`."""
        return self._sibling("_metrics.parquet")

    def all(self) -> list[Path]:
        """Return every file that a run or its profile may write."""
        return [
            self.rollouts,
            self.inputs,
            self.failures,
            self.aggregate_metrics,
            self.reward_profiling,
            self.agent_metrics,
            self.manifest,
            self.metrics_parquet,
        ]
