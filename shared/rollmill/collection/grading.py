"""Who grades the rollouts of an agent, as the registrations of the services tell."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import ValidationError

from rollmill.artifacts.manifest import Scoring, Verifier
from rollmill.client.directory import Directory
from rollmill.contracts.json import JsonObject


@dataclass(frozen=True, slots=True)
class Grading:
    """The verifiers of a run and what they score, by agent; agents that do not tell are left out."""

    verifiers: dict[str, Verifier] = field(default_factory=dict)
    scoring: dict[str, Scoring] = field(default_factory=dict)


async def grading_of(agents: Iterable[str], directory: Directory) -> Grading:
    """Look up the verifier and the scoring of each agent."""
    found = Grading()
    for agent in agents:
        resources = await resources_of(agent, directory)
        if not resources:
            continue
        replicas = await directory.replicas(resources)
        told = replicas[0].info.capabilities if replicas else {}
        found.verifiers[agent] = _verifier(resources, told)
        found.scoring[agent] = _scoring(told)
    return found


async def resources_of(agent: str, directory: Directory) -> str:
    """Return the name of the resources server that grades an agent's rollouts; empty when the agent does not tell."""
    replicas = await directory.replicas(agent)
    name = replicas[0].info.capabilities.get("resources") if replicas else None
    return name if isinstance(name, str) else ""


def _verifier(resources: str, told: JsonObject) -> Verifier:
    identity = told.get("verifier")
    try:
        return Verifier.model_validate({**(identity if isinstance(identity, dict) else {}), "resources": resources})
    except ValidationError:  # a server of another make
        return Verifier(resources=resources)


def _scoring(told: JsonObject) -> Scoring:
    names = Scoring.model_fields.keys() & told.keys()
    try:
        return Scoring.model_validate({name: told[name] for name in names})
    except ValidationError:
        return Scoring()
