"""What is wrong with a run, asked of the profiler: a clear problem or a defined result, on every view, never a 500."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest
from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill_services.profiler.app import create_app
from rollmill_services.profiler.settings import ProfilerSettings

VIEWS = ["profile", "profile?level=summary", "profile?format=html", "live"]
NOT_LIVE = VIEWS[:3]


def row(task: int, index: int, **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": "solver"}, **fields}


def text_of(*rows: Row) -> bytes:
    return b"".join(dumps(entry) + b"\n" for entry in rows)


INPUTS = [row(task, index) for task in (0, 1) for index in (0, 1)]
ROLLOUTS = [row(task, index, reward=1.0) for task in (0, 1) for index in (0, 1)]


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    """A running run called `a`, with nothing done yet."""
    files = RunFiles.at(tmp_path / "a" / "rollouts.jsonl")
    files.rollouts.parent.mkdir()
    files.inputs.write_bytes(text_of(*INPUTS))
    files.rollouts.touch()
    digests = Digests(input="", overrides="")
    Manifest(run_id="a", state="running", counts=Counts(expected=4), digests=digests).write(files.manifest)
    return files


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(ProfilerSettings(data_dir=tmp_path))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with app.running(), httpx.AsyncClient(transport=transport, base_url="http://profiler/v1/runs/a/") as client:
        yield client


def fault(response: httpx.Response) -> str:
    """Check that an answer says that the run's files are wrong, and return how it says it."""
    assert response.status_code == 422, response.text
    body: JsonObject = response.json()
    assert body["type"] == "urn:rollmill:problem:invalid-request"
    return str(body["detail"])


async def live(client: httpx.AsyncClient) -> JsonObject:
    response = await client.get("live")
    assert response.status_code == 200, response.text
    body: JsonObject = response.json()
    return body


@pytest.mark.parametrize("view", VIEWS)
async def test_duplicate_keys_are_named(client: httpx.AsyncClient, files: RunFiles, view: str) -> None:
    files.rollouts.write_bytes(text_of(*ROLLOUTS, ROLLOUTS[2]))

    assert fault(await client.get(view)) == "duplicate keys in the rollouts: 1:0"


@pytest.mark.parametrize("view", NOT_LIVE)
async def test_duplicate_input_rows_are_named(client: httpx.AsyncClient, files: RunFiles, view: str) -> None:
    files.inputs.write_bytes(text_of(*INPUTS, INPUTS[0]))
    files.rollouts.write_bytes(text_of(*ROLLOUTS))

    assert fault(await client.get(view)) == "duplicate keys in the input rows: 0:0"


@pytest.mark.parametrize("view", NOT_LIVE)
async def test_rollouts_without_an_input_row_are_named(client: httpx.AsyncClient, files: RunFiles, view: str) -> None:
    files.rollouts.write_bytes(text_of(*ROLLOUTS, row(7, 3, reward=1.0)))

    assert fault(await client.get(view)) == "rollouts with no input row: 7:3"


@pytest.mark.parametrize("view", NOT_LIVE)
async def test_missing_rollouts_are_counted_or_named(client: httpx.AsyncClient, files: RunFiles, view: str) -> None:
    files.rollouts.write_bytes(text_of(*ROLLOUTS[:3]))
    whole = f"{view}{'&' if '?' in view else '?'}allow_partial=false"

    assert (await client.get(view)).status_code == 200
    assert fault(await client.get(whole)) == "input rows with no rollout (a partial profile is possible): 1:1"
    assert (await live(client))["rollouts"] == 3


@pytest.mark.parametrize("view", VIEWS)
async def test_a_torn_last_line_is_not_there_yet(client: httpx.AsyncClient, files: RunFiles, view: str) -> None:
    files.rollouts.write_bytes(text_of(*ROLLOUTS)[:-5])

    response = await client.get(view)
    assert response.status_code == 200
    assert (await live(client))["rollouts"] == 3


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("damage", [b"no json\n", b"[1]\n", b'{"_ng_task_index": 1}\n', b"\xff\n"])
async def test_a_damaged_line_is_told_with_its_number(
    client: httpx.AsyncClient, files: RunFiles, view: str, damage: bytes
) -> None:
    files.rollouts.write_bytes(text_of(ROLLOUTS[0]) + damage + text_of(*ROLLOUTS[1:]))

    assert "rollouts.jsonl:2: " in fault(await client.get(view))


@pytest.mark.parametrize("view", VIEWS)
async def test_a_file_that_shrinks_or_is_replaced_is_read_again(
    client: httpx.AsyncClient, files: RunFiles, view: str
) -> None:
    files.rollouts.write_bytes(text_of(*ROLLOUTS))
    assert (await client.get(view)).status_code == 200

    files.rollouts.write_bytes(text_of(*ROLLOUTS[:2]))
    assert (await client.get(view)).status_code == 200
    shrunk = await live(client)
    files.rollouts.write_bytes(text_of(*(entry | {"reward": 0.0} for entry in ROLLOUTS)))
    assert (await client.get(view)).status_code == 200
    replaced = await live(client)

    assert (shrunk["rollouts"], shrunk["agents"]["solver"]["metrics"]["mean/reward"]) == (2, 1.0)
    assert (replaced["rollouts"], replaced["agents"]["solver"]["metrics"]["mean/reward"]) == (4, 0.0)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-1e999"])
async def test_rewards_that_are_not_finite_are_refused_counted_and_shown(
    client: httpx.AsyncClient, files: RunFiles, number: bytes
) -> None:
    files.rollouts.write_bytes(text_of(*ROLLOUTS).replace(b'"reward":1.0', b'"reward":' + number, 1))

    body = (await client.get("profile?level=summary")).raise_for_status().json()
    page = (await client.get("profile?format=html")).raise_for_status().text
    assert (await live(client))["refused_rollouts"] == 1
    assert (body["completion"]["refused_rollouts"], body["completion"]["missing_rollouts"]) == (1, 1)
    assert body["summaries"]["solver"]["rollouts"] == 3
    assert "1 rollout refused, their reward is not a finite number" in page
    detail = fault(await client.get("profile?allow_partial=false"))
    assert detail.startswith("1 rollouts have a reward that is not a finite number: 0:0")


async def test_text_where_a_number_was_is_a_missing_value(client: httpx.AsyncClient, files: RunFiles) -> None:
    odd: list[JsonValue] = [2, "two", None, [2]]
    files.rollouts.write_bytes(text_of(*(entry | {"size": size} for entry, size in zip(ROLLOUTS, odd, strict=True))))

    agent = (await client.get("profile?level=agent")).raise_for_status().json()["agents"][0]

    assert (agent["mean/size"], agent["mean/reward"]) == (2.0, 1.0)
    assert (await live(client))["agents"]["solver"]["metrics"]["mean/size"] == 2.0


@pytest.mark.parametrize("reward", ["1.0", None])
async def test_a_reward_that_is_no_number_is_a_rollout_without_a_score(
    client: httpx.AsyncClient, files: RunFiles, reward: str | None
) -> None:
    files.rollouts.write_bytes(text_of(ROLLOUTS[0], ROLLOUTS[1] | {"reward": reward}, *ROLLOUTS[2:]))

    body = (await client.get("profile?level=summary")).raise_for_status().json()
    page = (await client.get("profile?format=html")).raise_for_status().text

    for agent in (body["summaries"]["solver"], (await live(client))["agents"]["solver"]):
        assert (agent["rollouts"], agent["unscored"], agent["estimates"]["mean_reward"]["rollouts"]) == (4, 1, 3)
    assert "4 rollouts, 1 without a score" in page


@pytest.mark.parametrize("done", [0, 1])
@pytest.mark.parametrize("view", VIEWS)
async def test_no_rollout_and_one_rollout_have_a_defined_profile(
    client: httpx.AsyncClient, files: RunFiles, view: str, done: int
) -> None:
    files.rollouts.write_bytes(text_of(*ROLLOUTS[:done]))

    response = await client.get(view)

    assert response.status_code == 200
    assert not {"NaN", "Infinity"} & set(response.text.replace(",", " ").replace(":", " ").split())
    assert (await live(client))["rollouts"] == done


async def test_rollouts_of_which_none_has_a_score_have_a_defined_profile(
    client: httpx.AsyncClient, files: RunFiles
) -> None:
    files.rollouts.write_bytes(text_of(*INPUTS))

    summary = (await client.get("profile?level=summary")).raise_for_status().json()["summaries"]["solver"]

    assert (summary["rollouts"], summary["unscored"]) == (4, 4)
    assert "value" not in summary["estimates"]["mean_reward"]
    assert (await live(client))["agents"]["solver"]["unscored"] == 4


@pytest.mark.parametrize("view", VIEWS)
async def test_a_line_of_10_megabytes_is_read(client: httpx.AsyncClient, files: RunFiles, view: str) -> None:
    files.rollouts.write_bytes(text_of(ROLLOUTS[0] | {"said": "x" * 10_000_000}, *ROLLOUTS[1:]))

    response = await client.get(view)

    assert response.status_code == 200
    assert len(response.content) < 1_000_000
    assert (await live(client))["rollouts"] == 4


@pytest.mark.parametrize("view", ["profile", "profile?level=summary", "profile?format=html", "profile?format=csv"])
async def test_a_wrong_filter_is_shown_with_its_position(client: httpx.AsyncClient, files: RunFiles, view: str) -> None:
    files.rollouts.write_bytes(text_of(*ROLLOUTS))

    asked = client.build_request("GET", view)
    detail = fault(await client.get(asked.url.copy_add_param("filter", "mean_reward > 0.5 and and")))

    assert detail.startswith("filter, character 23: ")
    assert "\n" + " " * 24 + "^" in detail


@pytest.mark.parametrize("view", VIEWS)
async def test_an_unknown_run_is_not_found(client: httpx.AsyncClient, files: RunFiles, view: str) -> None:
    response = await client.get(f"../b/{view}")

    assert response.status_code == 404
    assert response.json()["type"] == "urn:rollmill:problem:run-not-found"
