from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, ValidationError

from rollmill._version import __version__
from rollmill.artifacts.writer import write_atomically
from rollmill.contracts.runs import AgentProgress, RunBudget, RunState, RunStatus
from rollmill.contracts.wire import WireModel
from rollmill.errors import ConflictError, InputError


class Digests(WireModel):
    """What makes two runs the same run; each but the shard is a SHA-256 in hexadecimal."""

    input: str
    """The bytes of the task file."""
    prompt: str | None = None
    overrides: str
    """Repeats, seeds, limit, agent and request parameters."""
    topology: str | None = None
    """The services with their settings, secrets removed; null when they were found through a head."""
    shard: str | None = None
    """Which part of the tasks was run, such as `0/4`; null for all of them. In a merged run that misses parts, or has
    unfinished ones, those that it is of, such as `0,2/4`."""


class Counts(WireModel):
    """How far a run got, in rollouts."""

    expected: int = 0
    completed: int = 0
    failed: int = 0
    """Rollouts given up on: a terminal failure, or no attempts left."""


class Verifier(WireModel):
    """What graded an agent's rollouts, as its resources server told; empty where it did not."""

    resources: str
    """Name of the resources server."""
    name: str = ""
    """`module:class` of the verifier."""
    version: str = ""
    """Version of its package."""
    digest: str = ""
    """SHA-256 of the file that defines it."""


class Scoring(WireModel):
    """Which fields of an agent's rollouts the statistics are about."""

    score_fields: list[str] = Field(default=["reward"], min_length=1)
    """The first one is the score unless another is asked for."""
    answer_field: str | None = "extracted_answer"
    """Holds the answer, for majority votes; null when there is none."""


class Source(WireModel):
    """The rollouts that a run graded again."""

    path: str
    """Their file."""
    run_id: str = ""
    rollouts: str
    """SHA-256 of the file's whole lines: rollouts, or failures when only those were graded again."""
    inputs: str
    """SHA-256 of the file of input rows."""
    failed_only: bool = False


class Manifest(WireModel):
    """Content of `x_manifest.json`."""

    run_id: str
    rollmill_version: str = __version__
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    updated_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    state: RunState = "running"
    error: str = ""
    """Why the run failed or was stopped, when it was."""
    input_path: str = ""
    digests: Digests
    counts: Counts = Counts()
    mean_reward: float | None = None
    agents: dict[str, AgentProgress] = Field(default_factory=dict)
    tokens: int = 0
    """Tokens that the run used so far."""
    wall_seconds: float = 0.0
    """How long the run was at work, all its sessions together."""
    budget: RunBudget = RunBudget()
    """Limits of the last session."""
    verifiers: dict[str, Verifier] = Field(default_factory=dict)
    """By agent."""
    scoring: dict[str, Scoring] = Field(default_factory=dict)
    """By agent; one that is missing has the defaults."""
    reverified: Source | None = None
    """Set when the rollouts are those of another run, graded again."""

    def score_field(self, agent: str) -> str:
        """Return the field that is the score of an agent's rollouts."""
        return self.scoring.get(agent, Scoring()).score_fields[0]

    def status(self) -> RunStatus:
        """Return what a run that nobody works on looks like: one that says it is running was interrupted."""
        return RunStatus(
            run_id=self.run_id,
            state="interrupted" if self.state in ("running", "paused") else self.state,
            error=self.error,
            created_at=self.created_at,
            expected=self.counts.expected,
            completed=self.counts.completed,
            failed=self.counts.failed,
            mean_reward=self.mean_reward,
            agents=self.agents,
            tokens=self.tokens,
            wall_seconds=self.wall_seconds,
            budget=self.budget,
        )

    def write(self, path: Path) -> None:
        """Replace the manifest file."""
        stamped = self.model_copy(update={"updated_at": datetime.now(UTC)})
        write_atomically(path, stamped.model_dump_json(indent=2).encode() + b"\n")


def read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None when there is no such file.

    Raises:
        InputError: the file is not a manifest.
    """
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise InputError(f"{path}: not a manifest: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None


def check_same_run(old: Digests, new: Digests, path: Path) -> None:
    """Refuse to continue a run that was started from something else.

    Raises:
        ConflictError: says what changed.
    """
    names = {
        "input": "the task file",
        "prompt": "the prompt config",
        "overrides": "repeats, seeds, limit, agent or request parameters",
        "topology": "the topology (services or their settings)",
        "shard": "the shard",
    }
    changed = [
        words
        for field, words in names.items()
        if getattr(old, field) != getattr(new, field)
        and not (field == "topology" and (old.topology is None or new.topology is None))
    ]
    if changed:
        raise ConflictError(
            f"{path}: cannot resume, this is another run: {'; '.join(changed)} changed since it was started. "
            "Undo the change, or collect into another output"
        )
