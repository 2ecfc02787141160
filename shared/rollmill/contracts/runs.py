from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator

from rollmill.contracts.json import JsonObject
from rollmill.contracts.shards import ShardNumber
from rollmill.contracts.wire import WireModel

RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
MAX_CONCURRENCY = 65_536

RunState: TypeAlias = Literal["running", "paused", "finished", "stopped", "cancelled", "failed", "interrupted"]
Repeats: TypeAlias = Annotated[int, Field(ge=1)]


class RunBudget(WireModel):
    """Limits of a whole run, all its sessions together. At the first one reached it stops cleanly and can be resumed
    with a larger one: a budget is no part of what the run is.
    """

    max_tokens_total: int | None = Field(default=None, ge=1)
    """Tokens, as the `usage` of the responses tells."""
    max_wall_seconds: float | None = Field(default=None, gt=0)
    """Seconds at work."""
    max_failures: int | None = Field(default=None, ge=1)
    """Rollouts given up on."""
    stop_grace_seconds: float = Field(default=60.0, ge=0)
    """How long the rollouts in flight may go on then. Those cancelled after it have not failed: a resume runs them."""


class RunOptions(RunBudget):
    """How a collection runs; the same options on the command line, in a run request and in Python."""

    agent: str | None = None
    """Agent of the rows that name none."""
    num_repeats: int | dict[str, int] | None = None
    """Rollouts for each task; by agent name when a mapping, `_default` for the others. Null means 1."""
    add_seed: bool = False
    """Give each repeat its rollout index as the sampling seed."""
    limit: int | None = Field(default=None, ge=1)
    """Use only so many input lines."""
    shard: str | None = None
    """Run only one part of the tasks: `0/4` is the first of four. Repeats of a task are never parted."""
    concurrency: int = Field(default=64, ge=1, le=MAX_CONCURRENCY)
    """Most rollouts in flight."""
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_output_tokens: int | None = Field(default=None, ge=1)
    params: JsonObject = Field(default_factory=dict)
    """Further request parameters, merged over each row's own like the three above."""
    timeout_seconds: float = Field(default=3600.0, gt=0)
    """Longest time for one attempt at one rollout."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """Attempts at one rollout, failures that no retry can help excepted."""
    fail_fast_count: int = Field(default=20, ge=0)
    """Stop the run after so many attempts that were plainly unreachable or unauthorised, nothing being completed;
    0: never."""
    fail_fast_share: float | None = Field(default=None, gt=0, le=1)
    """Also stop it when, after `fail_fast_count` settled rollouts, this share of them failed for good."""
    aggregate: bool = True
    """Compute metrics for each agent at the end."""

    @field_validator("shard")
    @classmethod
    def _check_shard(cls, text: str | None) -> str | None:
        return None if text is None else str(ShardNumber.parse(text))

    def overrides(self) -> JsonObject:
        """Return the request parameters that are merged over each row's."""
        named = {"temperature": self.temperature, "top_p": self.top_p, "max_output_tokens": self.max_output_tokens}
        return {**{name: value for name, value in named.items() if value is not None}, **self.params}


class AgentProgress(WireModel):
    """Numbers of one agent in a run."""

    expected: int = 0
    completed: int = 0
    failed: int = 0
    mean_reward: float | None = None


class RunStatus(WireModel):
    """Answer of `GET /v1/runs/{id}`."""

    run_id: str
    state: RunState
    error: str = ""
    """Why it failed or was stopped."""
    created_at: datetime
    expected: int
    completed: int
    failed: int
    """Rollouts given up on."""
    failed_attempts: int = 0
    """Attempts that failed in this session of the run, retried ones included."""
    failures: dict[str, int] = Field(default_factory=dict)
    """Failed attempts of this session by boundary and type, such as `model/upstream-timeout`."""
    in_flight: int = 0
    concurrency: int = 0
    windows: dict[str, int] = Field(default_factory=dict)
    """How many rollouts of each agent may be in flight now: it grows from 256 up, and shrinks when a service asks for
    less. The concurrency bounds it."""
    rate_per_second: float = 0.0
    """Settled rollouts per second since the run was last started."""
    eta_seconds: float | None = None
    mean_reward: float | None = None
    agents: dict[str, AgentProgress] = Field(default_factory=dict)
    tokens: int = 0
    """Tokens that the run used so far, failed attempts whose response is kept included."""
    wall_seconds: float = 0.0
    """How long the run was at work, all its sessions together."""
    budget: RunBudget = RunBudget()
    """Its limits."""


class RunRequest(RunOptions):
    """Body of `POST /v1/runs` and `POST /collect`."""

    id: str | None = Field(default=None, pattern=RUN_ID_PATTERN)
    """Chosen by the caller, or made from time and name. The same id with the same content is the same run."""
    name: str = Field(default="run", max_length=100)
    """Goes into a made id."""
    input: str | None = None
    """Path of a task file inside the data directory."""
    rows: list[JsonObject] | None = None
    """The tasks themselves; either these, or `input`, or an uploaded file."""
    prompt: JsonObject | None = None
    """A prompt config, `{"user": ..., "system": ...}`."""
    resume: bool = False
    """Go on with an interrupted, stopped, cancelled or failed run of this id."""


class RunList(WireModel):
    """Answer of `GET /v1/runs`, newest first."""

    runs: list[RunStatus]


class RunChange(WireModel):
    """Body of `PATCH /v1/runs/{id}`."""

    concurrency: int = Field(ge=1, le=MAX_CONCURRENCY)
