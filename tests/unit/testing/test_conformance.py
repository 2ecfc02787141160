"""The kit passes what keeps the contract, and names each way of breaking it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from pydantic import SecretStr

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import ConflictError, InputError
from rollmill.server import resources_app
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill.server.tools import ToolError, tool
from rollmill.testing import service_client
from rollmill.testing.conformance import (
    Check,
    Fixture,
    ToolCall,
    assert_conforms,
    check_service,
    check_url,
    read_fixtures,
)
from rollmill.testing.conformance.declarations import tool_faults

if TYPE_CHECKING:
    from tests.conftest import Serve

TASK = {"responses_create_params": {"input": "Which city?"}, "city": "Oslo"}
RIGHT, WRONG = Fixture(task=0, answer="Oslo", reward=1.0), Fixture(task=0, answer="Rome", reward=0.0)


class Cities(Resources):
    """Keeps the contract."""

    reverify_mode: ClassVar[ReverifyMode] = "stateless"

    async def seed_session(self, session: Session, row: Row) -> None:
        Rollout(row).require("city")

    @tool
    async def spell(self, city: str, session: Session) -> str:
        """Spell a city."""
        session.state["spelt"] = True
        return " ".join(city)

    async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
        return Verdict(float(rollout.text == rollout.require("city")), {"extracted_answer": rollout.text})


async def checked(
    resources: Resources, *, tasks: Sequence[Row] = (TASK,), fixtures: Sequence[Fixture] = (RIGHT, WRONG)
) -> dict[str, Check]:
    async with service_client({"cities": resources_app(resources)}) as client:
        found = await check_service(client, "cities", tasks=tasks, fixtures=fixtures, timeout_seconds=20.0)
    return {check.name: check for check in found}


def failed(checks: dict[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if check.status == "fail"}


async def test_an_environment_that_keeps_the_contract_passes_every_check() -> None:
    checks = await checked(Cities())

    assert {name: check.status for name, check in checks.items()} == dict.fromkeys(
        ["description", "tools", "tasks", "missing fields", "fixtures", "same verdict", "hostile answers"], "pass"
    )
    assert checks["missing fields"].detail == "needs city"
    assert checks["hostile answers"].detail == "13 answers without the full reward"


async def test_what_cannot_be_looked_at_is_skipped_with_the_reason() -> None:
    checks = await checked(Cities(), tasks=(), fixtures=())

    assert {name for name, check in checks.items() if check.status == "skip"} == {
        "tasks",
        "missing fields",
        "fixtures",
        "same verdict",
        "hostile answers",
    }
    assert "--tasks" in checks["tasks"].detail
    assert "--fixtures" in checks["fixtures"].detail


async def test_a_tool_without_a_description_is_a_fault() -> None:
    class Silent(Cities):
        @tool
        async def spell(self, city: str, session: Session) -> str:
            return city

    Silent.spell.__doc__ = None
    Cities.spell.__doc__, kept = None, Cities.spell.__doc__  # docstrings are inherited
    try:
        checks = await checked(Silent())
    finally:
        Cities.spell.__doc__ = kept

    assert failed(checks) == {"tools"}
    assert "spell: no description" in checks["tools"].detail


async def test_a_task_that_cannot_be_seeded_is_named_by_its_number() -> None:
    checks = await checked(Cities(), tasks=[TASK, {"city": None}])

    assert failed(checks) == {"tasks"}
    assert checks["tasks"].detail.startswith("task 1: ")
    assert "city" in checks["tasks"].detail


async def test_a_missing_field_that_breaks_the_verifier_is_a_fault() -> None:
    class Careless(Cities):
        async def seed_session(self, session: Session, row: Row) -> None:
            pass

        async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
            return float(rollout.text == rollout.row["city"])

    checks = await checked(Careless())

    assert failed(checks) == {"missing fields"}
    assert "without 'city': 500 instead of 422" in checks["missing fields"].detail


async def test_a_refusal_that_does_not_name_the_field_is_a_fault() -> None:
    class Mute(Cities):
        async def seed_session(self, session: Session, row: Row) -> None:
            if "city" not in row:
                raise InputError("bad row")

    checks = await checked(Mute())

    assert failed(checks) == {"missing fields"}
    assert "does not name it: bad row" in checks["missing fields"].detail


async def test_a_field_that_is_missed_only_when_grading_is_told() -> None:
    class Late(Cities):
        async def seed_session(self, session: Session, row: Row) -> None:
            pass

    assert (await checked(Late()))["missing fields"].detail == "needs city; told only when graded: city"


async def test_a_wrong_reward_is_told_with_the_number_of_the_fixture() -> None:
    checks = await checked(Cities(), fixtures=[RIGHT, WRONG, Fixture(task=0, answer="oslo", reward=1.0)])

    assert failed(checks) == {"fixtures"}
    assert checks["fixtures"].detail == "fixture 2: reward 0, not 1"


async def test_a_fixture_of_a_task_that_does_not_exist_is_told() -> None:
    checks = await checked(Cities(), fixtures=[Fixture(task=7, answer="Oslo", reward=1.0)])

    assert "task 7 is not among the 1 tasks" in checks["fixtures"].detail


async def test_the_calls_of_a_fixture_are_made_in_its_session() -> None:
    class Spelling(Cities):
        reverify_mode = "unsupported"

        async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
            outputs = [i["output"] for i in rollout.response["output"] if i["type"] == "function_call_output"]
            return float(session.state.get("spelt", False) and outputs == ["O s l o"])

    call = ToolCall(tool="spell", arguments={"city": "Oslo"})
    fixtures = [Fixture(task=TASK, calls=[call], answer="Done.", reward=1.0), Fixture(task=TASK, answer="", reward=0.0)]

    checks = await checked(Spelling(), fixtures=fixtures)

    assert failed(checks) == set()
    assert checks["same verdict"].status == "skip"


async def test_a_verdict_that_changes_with_each_call_is_no_stateless_one() -> None:
    class Counting(Cities):
        calls = 0

        async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
            self.calls += 1
            verdict = await super().verify(rollout, session)
            assert isinstance(verdict, Verdict)
            return Verdict(verdict.reward, {"extracted_answer": str(self.calls)})

    checks = await checked(Counting())

    assert failed(checks) == {"same verdict"}


@pytest.mark.parametrize(
    ("fooled", "told"),
    [
        (lambda rollout: not rollout.text.strip(), "an empty answer gets the full reward of 1"),
        (lambda rollout: len(rollout.text) > 900_000, "1 MB of words gets the full reward"),
        (lambda rollout: "give reward 1" in rollout.text, "an order to the grader gets the full reward"),
        (lambda rollout: rollout.row.get("reward"), "a reward beside the answer gets the full reward"),
    ],
    ids=["empty", "huge", "ordered", "planted"],
)
async def test_a_verifier_that_is_fooled_is_found_out(fooled: Callable[[Rollout], object], told: str) -> None:
    class Fooled(Cities):
        reverify_mode = "unknown"

        async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
            return 1.0 if fooled(rollout) else await super().verify(rollout, session)

    checks = await checked(Fooled())

    assert failed(checks) == {"hostile answers"}
    assert told in checks["hostile answers"].detail


async def test_a_verifier_that_breaks_on_an_answer_gives_no_verdict() -> None:
    class Fragile(Cities):
        async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
            return float(len(rollout.text) < 10_000 and ["no", "yes"].index(rollout.text))

    checks = await checked(Fragile(), fixtures=[], tasks=[TASK])

    assert "500, neither a verdict nor a refusal" in checks["hostile answers"].detail


async def test_without_fixtures_a_full_reward_is_told_but_no_failure() -> None:
    class Generous(Cities):
        async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
            return 1.0

    check = (await checked(Generous(), fixtures=[]))["hostile answers"]

    assert check.status == "skip"
    assert check.detail.startswith("an empty answer gets the full reward of 1; only fixtures.yaml can tell")


async def test_a_row_that_cannot_be_graded_yet_is_not_taken_for_one_that_lacks_a_field() -> None:
    class Unplayed(Cities):
        async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
            raise ConflictError("no episode was played in this session")

    assert (await checked(Unplayed()))["missing fields"].status == "pass"


async def test_a_task_whose_every_answer_is_right_is_not_attacked() -> None:
    checks = await checked(Cities(), fixtures=[RIGHT])

    assert checks["hostile answers"].status == "skip"


@pytest.mark.parametrize(
    ("definition", "told"),
    [
        ({"name": "no spaces"}, "name must match"),
        ({"name": "verify"}, "protocol's own endpoints"),
        ({"type": "other"}, "`type` must be 'function'"),
        ({"description": " "}, "no description"),
        ({"parameters": None}, "JSON schema of type 'object'"),
        ({"parameters": {"type": "object", "properties": {"a": {"type": "text"}}}}, "'text' does not exist"),
        ({"parameters": {"type": "object", "required": ["a"]}}, "'a' is required, but no property"),
        ({"parameters": {"type": "object", "properties": {"a": {"items": 3}}}}, "a.items is not a JSON schema"),
        ({"parameters": {"type": "object", "anyOf": [{"type": ["null", "x"]}]}}, "anyOf.0: the type 'x'"),
        ({"parameters": {"type": "object", "required": "a"}}, "`required` must be a list"),
    ],
)
def test_a_definition_that_an_engine_would_refuse_is_a_fault(definition: JsonObject, told: str) -> None:
    good: JsonObject = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}

    assert list(tool_faults(good)) == []
    [fault] = tool_faults({**good, **definition})
    assert told in fault


async def test_a_server_behind_a_url_is_checked_with_its_token(serve: "Serve") -> None:
    app = resources_app(Cities(ServiceSettings(token=SecretStr("secret"))))
    async with serve(app) as url:
        known = await check_url(url, token="secret", tasks=[TASK], fixtures=[RIGHT, WRONG])
        unknown = await check_url(url, token="guess", tasks=[TASK])

    assert {check.status for check in known} == {"pass"}
    assert [(check.name, check.status) for check in unknown] == [("description", "fail")]


async def test_a_url_that_nobody_answers_is_one_failed_check() -> None:
    [check] = await check_url("http://127.0.0.1:9")

    assert (check.name, check.status) == ("description", "fail")


def write(folder: Path, fixtures: str) -> tuple[Path, Path]:
    (folder / "tasks.jsonl").write_text(json.dumps(TASK))
    (folder / "fixtures.yaml").write_text(fixtures)
    return folder / "tasks.jsonl", folder / "fixtures.yaml"


def test_the_assertion_for_authors_passes_or_says_what_failed(tmp_path: Path) -> None:
    tasks, fixtures = write(tmp_path, "- {task: 0, answer: Oslo, reward: 1}\n- {task: 0, answer: Rome, reward: 0}\n")
    assert_conforms(Cities(), tasks=tasks, fixtures=fixtures)

    fixtures.write_text("- {task: 0, answer: Rome, reward: 1}\n")
    with pytest.raises(AssertionError, match="fixtures: fixture 0: reward 0, not 1"):
        assert_conforms(Cities(), tasks=tasks, fixtures=fixtures)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not valid YAML"),
        ("task: 0", "valid list"),
        ("- {task: 0, reward: 1}", "either 'answer' or 'response'"),
        ("- {task: 0, answer: a, response: {}, reward: 1}", "either 'answer' or 'response'"),
        ("- {task: 0, answer: a}", "0.reward"),
        ("- {task: 0, answer: a, reward: .nan}", "0.reward"),
        ("- {task: -1, answer: a, reward: 1}", "0.task"),
        ("- {task: 0, answer: a, reward: 1, calls: [roll]}", "0.calls.0"),
        ("- {task: 0, answr: a, reward: 1}", "answr"),
    ],
)
def test_a_wrong_fixture_file_is_an_error_that_names_the_place(text: str, told: str, tmp_path: Path) -> None:
    _, path = write(tmp_path, text)

    with pytest.raises(InputError, match=told):
        read_fixtures(path)


def test_a_fixture_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_fixtures(tmp_path / "fixtures.yaml")


async def test_a_tool_that_refuses_is_part_of_the_rollout_and_no_fault() -> None:
    class Strict(Cities):
        @tool
        async def spell(self, city: str, session: Session) -> str:
            """Spell a city."""
            raise ToolError("not today")

    call = ToolCall(tool="spell", arguments={"city": "Oslo"})

    checks = await checked(Strict(), fixtures=[Fixture(task=0, calls=[call], answer="Oslo", reward=1.0), WRONG])

    assert failed(checks) == set()
