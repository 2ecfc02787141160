"""Every endpoint of the control plane that takes the name of a file or run: nothing outside the data directory."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from rollmill.contracts.json import JsonObject
from rollmill.testing import asgi_client
from rollmill_services.collector.app import create_app as create_collector
from rollmill_services.collector.settings import CollectorSettings
from rollmill_services.profiler.app import create_app as create_profiler
from rollmill_services.profiler.settings import ProfilerSettings

SECRET = "found-outside"
ROW = f'{{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0, "x": "{SECRET}", "agent_ref": {{"name": "a"}}}}\n'
PATHS = [
    *(
        "../outside/rollouts.jsonl",
        "sub/../../outside/rollouts.jsonl",
        "link/rollouts.jsonl",
        "file.jsonl",
        "deep/up/x",
    ),
    *(
        "/etc/passwd",
        "/proc/self/environ",
        "..",
        ".",
        "",
        "x\x00",
        "~/x",
        "file:///etc/passwd",
        "\\..\\outside",
        "a" * 5000,
    ),
]
RUNS = ["link", "flat", "..", "%2e%2e", "..%2foutside", "%2fetc", "link%2f..", "x%00"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with links out of it, next to what they lead to."""
    data, outside = tmp_path / "data", tmp_path / "outside"
    for folder in (data, outside, data / "deep"):
        folder.mkdir()
    for name in ("rollouts.jsonl", "rollouts_manifest.json", "rollouts_materialized_inputs.jsonl"):
        (outside / name).write_text(ROW)
    (data / "link").symlink_to(outside)
    (data / "deep" / "up").symlink_to(tmp_path)
    (data / "file.jsonl").symlink_to(outside / "rollouts.jsonl")
    (data / "flat.jsonl").symlink_to(outside / "rollouts.jsonl")
    (data / "flat_manifest.json").symlink_to(outside / "rollouts_manifest.json")
    return data


@pytest.fixture
async def collector(data: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(create_collector(CollectorSettings(data_dir=data))) as client:
        yield client


@pytest.fixture
async def profiler(data: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(create_profiler(ProfilerSettings(data_dir=data))) as client:
        yield client


def refused(answer: httpx.Response) -> bool:
    return answer.status_code in (404, 405, 422) and SECRET not in answer.text and "root:" not in answer.text


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("endpoint", ["/v1/runs", "/collect"])
async def test_tasks_are_read_from_the_data_directory_only(
    collector: httpx.AsyncClient, endpoint: str, path: str
) -> None:
    answer = await collector.post(endpoint, json={"id": "mine", "input": path, "agent": "a"})
    assert refused(answer), answer.text


@pytest.mark.parametrize("path", PATHS)
async def test_rollouts_and_inputs_are_read_from_the_data_directory_only(
    profiler: httpx.AsyncClient, data: Path, path: str
) -> None:
    (data / "fine.jsonl").write_text(ROW)
    bodies: list[JsonObject] = [{"rollouts_path": path}, {"rollouts_path": "fine.jsonl", "inputs_path": path}]
    for body in bodies:
        answer = await profiler.post("/v1/profile", json=body)
        assert refused(answer), answer.text
    assert (await profiler.post("/v1/profile", json={"rollouts_path": "fine.jsonl"})).status_code == 200


@pytest.mark.parametrize("run", RUNS)
async def test_a_run_is_not_followed_out_of_the_data_directory(
    collector: httpx.AsyncClient, profiler: httpx.AsyncClient, run: str
) -> None:
    answers = [await collector.get(f"/v1/runs/{run}{part}") for part in ("", "/rollouts")]
    answers += [await collector.post(f"/v1/runs/{run}/{verb}") for verb in ("cancel", "pause", "resume")]
    answers += [await profiler.get(f"/v1/runs/{run}/{part}") for part in ("profile", "live")]
    answers += [await profiler.get("/v1/compare", params={"a": run, "b": run})]
    assert [answer.text for answer in answers if not refused(answer)] == []
    assert SECRET not in (await collector.get("/v1/runs")).text


async def test_an_uploaded_file_is_kept_under_a_name_of_ours(collector: httpx.AsyncClient, data: Path) -> None:
    form = {"file": ("../../escaped.jsonl", ROW.encode())}
    await collector.post("/v1/runs", files=form, data={"request": '{"id": "mine"}'})
    assert list(data.parent.rglob("*escaped*")) == []
