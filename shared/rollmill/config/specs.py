from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rollmill.contracts.json import JsonObject, JsonValue

TopologyKind: TypeAlias = Literal["model", "resources", "agent"]
Split: TypeAlias = Literal["train", "validation", "benchmark"]


def _not_a_boolean(value: JsonValue) -> JsonValue:
    if isinstance(value, bool):
        raise ValueError("a number is needed, not true or false")
    return value


Count: TypeAlias = Annotated[int, BeforeValidator(_not_a_boolean), Field(ge=1)]


class Strict(BaseModel):
    """Frozen, and an unknown key is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServiceSpec(Strict):
    """One entry under `services`."""

    kind: TopologyKind
    use: str = Field(min_length=1)
    """Entry-point name, or `module:attribute`."""
    settings: JsonObject = Field(default_factory=dict)
    """What the settings class of the service takes; a string that holds environment values is an `Expanded`."""
    replicas: Annotated[Count, Field(le=1024)] = 1


class DatasetSpec(Strict):
    """One entry under `datasets`: what `collect` runs when it is given no input."""

    agent: str | None = Field(default=None, min_length=1)
    """Runs the tasks that name no agent of their own."""
    path: Path
    """File with one task a line; absolute once loaded, relative to the topology file before."""
    num_repeats: Count | dict[str, Count] | None = None
    """Rollouts per task; by agent name, with `_default` for the others, when it is a mapping."""
    split: Split | None = None
    limit: Count | None = None
    """Read only this many lines."""
    name: str | None = Field(default=None, min_length=1)


class Topology(Strict):
    """A topology as it was loaded; frozen."""

    services: dict[str, ServiceSpec]
    datasets: list[DatasetSpec] = Field(default_factory=list)
    source: Path | None = None
    """The file it came from."""
