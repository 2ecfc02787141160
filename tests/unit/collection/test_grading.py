from pathlib import Path
from typing import Annotated

import pytest

from rollmill.artifacts.manifest import Scoring, Verifier
from rollmill.client.directory import StaticDirectory
from rollmill.collection.grading import grading_of
from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import ServiceRef
from rollmill.config.topology import grading_services, parse_topology
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.services import Instance, Kind
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session


def instance(name: str, kind: Kind, capabilities: JsonObject) -> Instance:
    return Instance(name=name, instance=name, kind=kind, url=f"http://{name}", capabilities=capabilities)


def directory(told: JsonObject, agent: JsonObject | None = None) -> StaticDirectory:
    agent = {"resources": "words"} if agent is None else agent
    return StaticDirectory([instance("solver", "agent", agent), instance("words", "resources", told)])


async def test_the_manifest_learns_who_grades_and_what_is_scored() -> None:
    told: JsonObject = {
        "verifier": {"name": "m:C", "version": "1", "digest": "d"},
        "score_fields": ["style", "reward"],
        "answer_field": None,
        "tools": [],
    }

    found = await grading_of(["solver"], directory(told))

    assert found.verifiers == {"solver": Verifier(resources="words", name="m:C", version="1", digest="d")}
    assert found.scoring == {"solver": Scoring(score_fields=["style", "reward"], answer_field=None)}


@pytest.mark.parametrize(
    "told", [{}, {"verifier": "me"}, {"verifier": {"colour": "red"}}, {"score_fields": []}, {"score_fields": "reward"}]
)
async def test_a_server_of_another_make_is_known_by_its_name_only(told: JsonObject) -> None:
    found = await grading_of(["solver"], directory(told))

    assert found.verifiers == {"solver": Verifier(resources="words")}
    assert found.scoring == {"solver": Scoring(score_fields=["reward"], answer_field="extracted_answer")}


@pytest.mark.parametrize("agent", [{}, {"resources": 5}])
async def test_agents_that_do_not_tell_are_left_out(agent: JsonObject) -> None:
    found = await grading_of(["solver", "nobody"], directory({}, agent))

    assert (found.verifiers, found.scoring) == ({}, {})


class JudgeSettings(ServiceSettings):
    judge: Annotated[str, ServiceRef("model")] = ""


class Judged(Resources):
    Settings = JudgeSettings

    async def verify(self, rollout: Rollout, session: Session) -> float:
        return 1.0


def test_grading_starts_a_model_only_when_a_verifier_asks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judged_here.py").write_text(f"import sys\nJudged = sys.modules[{__name__!r}].Judged\n")
    monkeypatch.syspath_prepend(tmp_path)
    topology = parse_topology(
        """
        services:
          policy: {kind: model, use: scripted}
          judging: {kind: model, use: scripted}
          words: {kind: resources, use: string_match}
          essays: {kind: resources, use: "judged_here:Judged", settings: {judge: judging}}
          solver: {kind: agent, use: single_turn, settings: {model: policy, resources: words}}
          writer: {kind: agent, use: single_turn, settings: {model: policy, resources: essays}}
        """,
        base_dir=tmp_path,
    )

    assert set(grading_services(topology)) == {"judging", "words", "essays", "solver", "writer"}
    assert grading_services(topology).index("judging") < grading_services(topology).index("essays")
