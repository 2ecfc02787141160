"""What the profiler can be asked, and the shape of its answer."""

from typing import Final, Literal, Self, TypeAlias

from pydantic import Field, ValidationError, model_validator

from rollmill.contracts.json import JsonObject, loads
from rollmill.contracts.runs import RUN_ID_PATTERN, RunState
from rollmill.contracts.wire import WireModel
from rollmill.errors import InputError

_FAULTS_SHOWN = 10

Level: TypeAlias = Literal["task", "agent", "summary"]
Format: TypeAlias = Literal["json", "csv", "parquet", "html"]


class View(WireModel):
    """Which part of a profile is answered, and how it is written."""

    level: Level | None = None
    """JSON: the classic statistics of agents and tasks when not given. CSV and Parquet are one table, that of the
    tasks when not given. HTML is the whole report, whatever the level."""
    format: Format = "json"
    filter: str | None = Field(default=None, min_length=1, max_length=4000)
    """Only tasks for which this holds, such as `0.1 < mean_reward < 0.9 and num_rollouts >= 4`, and their rollouts."""
    offset: int = Field(default=0, ge=0)
    """Tasks to skip."""
    limit: int | None = Field(default=None, ge=1, le=10_000)
    """Most tasks in the answer. When not given, 100 in JSON and all in CSV and Parquet."""


class RunView(View):
    """The query of `GET /v1/runs/{id}/profile`."""

    allow_partial: bool = True
    """Accept a run with rollouts missing."""


class Comparison(WireModel):
    """The query of `GET /v1/compare`."""

    a: str = Field(pattern=RUN_ID_PATTERN)
    """The run that the other one is measured against."""
    b: str = Field(pattern=RUN_ID_PATTERN)
    """The other one."""
    force: bool = False
    """Compare although dataset or verifier differ."""


class ProfileRequest(WireModel):
    """Body of `POST /v1/profile`. Without input rows, the rollouts themselves are what was expected."""

    rollouts: list[JsonObject] | None = None
    """Finished rollouts; either these or their path."""
    rollouts_path: str | None = None
    """A rollouts file inside the data directory."""
    inputs: list[JsonObject] | None = None
    """Materialized input rows; these, their path, or neither."""
    inputs_path: str | None = None
    """A file of materialized input rows inside the data directory."""
    allow_partial: bool = False
    """Accept input rows with no rollout."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if (self.rollouts is None) == (self.rollouts_path is None):
            raise ValueError("give exactly one of rollouts and rollouts_path")
        if self.rollouts is not None and self.inputs_path is not None:
            raise ValueError("posted rollouts go with posted inputs, not with inputs_path")
        if self.rollouts_path is not None and self.inputs is not None:
            raise ValueError("rollouts_path goes with inputs_path, not with posted inputs")
        return self


class ProfileBody(WireModel):
    """A profile as JSON; `level` decides which members are there."""

    run_id: str | None
    """Null for posted rows and files."""
    state: RunState | None
    """The run's state as its manifest gives it."""
    filter: str | None = None
    """The filter, when there was one; `completion` is of the whole run all the same."""
    completion: JsonObject = Field(default_factory=dict)
    """How complete the run is, in rollouts and in tasks."""
    summaries: dict[str, JsonObject] = Field(default_factory=dict)
    """By agent: estimates with intervals and what a trainer looks at."""
    agents: list[JsonObject] = Field(default_factory=list)
    """Statistics over all rollouts of each agent."""
    tasks: list[JsonObject] = Field(default_factory=list)
    """Statistics of each task with a finished rollout, by index, from `offset` on."""
    tasks_total: int = 0
    """Tasks that the filter lets through, on all pages."""
    offset: int = 0
    limit: int = 100


class LiveBody(WireModel):
    """The statistics of a run that are kept up to date."""

    run_id: str
    state: RunState | None
    """The run's state as its manifest gives it."""
    rollouts: int
    """Finished rollouts that were taken in."""
    expected_rollouts: int | None
    refused_rollouts: int
    """Rollouts that were left out because their reward is not a finite number."""
    agents: dict[str, JsonObject]
    """By name; see `rollmill.metrics.running.RunningProfile.summary`."""


class ComparisonBody(WireModel):
    """Two runs side by side; see `rollmill.comparison.compare_files`."""

    a: JsonObject
    b: JsonObject
    notes: list[str]
    forced: list[str]
    only_a: list[str]
    only_b: list[str]
    agents: dict[str, JsonObject]


REQUEST_BODY: Final[JsonObject] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": ProfileRequest.model_json_schema()}},
    }
}


def parse_profile_request(body: bytes) -> ProfileRequest:
    """Read the body of `POST /v1/profile`.

    Raises:
        InputError: names each wrong field.
    """
    try:
        return ProfileRequest.model_validate(loads(body))
    except ValidationError as error:
        faults = [
            {"pointer": "".join(f"/{part}" for part in fault["loc"]), "detail": fault["msg"]}
            for fault in error.errors(include_url=False, include_input=False)[:_FAULTS_SHOWN]
        ]
        detail = "; ".join(f"{fault['pointer'] or '/'}: {fault['detail']}" for fault in faults)
        raise InputError(detail, errors=faults) from None
    except ValueError as error:
        fault = {"pointer": "", "detail": str(error)}
        raise InputError(f"the body is not valid JSON: {error}", errors=[fault]) from None
