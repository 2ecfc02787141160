import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.collector_bench import Bench, Serve, open_bench, until

from rollmill import (
    AsyncCollectorClient,
    AsyncProfilerClient,
    CollectorClient,
    ProfilerClient,
    RunRequest,
    RunStatus,
    read_rollouts,
)
from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.contracts.rows import Row
from rollmill.errors import (
    ConflictError,
    ConnectError,
    InputError,
    RollmillError,
    RunNotFoundError,
    ServiceNotFoundError,
    UnauthorizedError,
    UpstreamError,
)
from rollmill_services.profiler.app import create_app as create_profiler
from rollmill_services.profiler.settings import ProfilerSettings

BREAKS = "one\u2028two\x85three\x0b\x0cfour\r\nfive\x1c"
"""Characters that some line readers cut at, and that JSON text may hold."""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path / "data", BREAKS) as bench:
        yield bench


@pytest.fixture
async def collector(bench: Bench, serve: Serve) -> AsyncIterator[AsyncCollectorClient]:
    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        yield client


def request(count: int = 4, run_id: str | None = "a", **fields: JsonValue) -> RunRequest:
    rows = [{"agent_ref": {"name": "solver"}, "responses_create_params": {"input": f"{n}"}} for n in range(count)]
    return RunRequest.model_validate({"id": run_id, "rows": rows, **fields})


async def settled(client: AsyncCollectorClient, count: int) -> RunStatus:
    async with asyncio.timeout(20):
        while (status := await client.status("a")).completed < count:  # noqa: ASYNC110 (the service is asked, as its users do)
            await asyncio.sleep(0.01)
    return status


async def finished(client: AsyncCollectorClient, state: str = "finished") -> RunStatus:
    async with asyncio.timeout(20):
        while (status := await client.status("a")).state != state:  # noqa: ASYNC110 (the service is asked, as its users do)
            await asyncio.sleep(0.01)
    return status


async def read_into(seen: list[Row], client: AsyncCollectorClient) -> None:
    async for row in client.rollouts("a"):
        seen.append(row)


def keys_on_disk(bench: Bench) -> list[int]:
    return [row["_ng_task_index"] for row in read_rollouts(bench.data_dir / "a" / "rollouts.jsonl")]


def state_on_disk(bench: Bench) -> str:
    return str(loads((bench.data_dir / "a" / "rollouts_manifest.json").read_bytes())["state"])


async def test_a_run_is_started_followed_and_listed(collector: AsyncCollectorClient) -> None:
    accepted = await collector.start(request())
    rows = [row async for row in collector.rollouts("a")]

    assert (accepted.run_id, accepted.expected) == ("a", 4)
    assert sorted(row["_ng_task_index"] for row in rows) == [0, 1, 2, 3]
    assert [run.run_id for run in await collector.runs()] == ["a"]
    assert (await finished(collector)).mean_reward == 1.0


async def test_texts_with_unusual_line_breaks_are_read_whole(collector: AsyncCollectorClient) -> None:
    await collector.start(request(1))
    [row] = [row async for row in collector.rollouts("a")]

    assert row["response"]["output"][0]["content"][0]["text"] == BREAKS


async def test_a_stream_goes_on_from_a_line(collector: AsyncCollectorClient) -> None:
    await collector.start(request())
    rows = [row async for row in collector.rollouts("a")]

    assert [row async for row in collector.rollouts("a", from_line=3)] == rows[3:]


async def test_the_synchronous_client_does_the_same(bench: Bench, serve: Serve) -> None:
    async with serve(bench.app()) as url:
        await asyncio.to_thread(_drive, url)


def _drive(url: str) -> None:
    with CollectorClient(url) as client:
        client.start(request())
        rows = list(client.rollouts("a"))
        assert sorted(row["_ng_task_index"] for row in rows) == [0, 1, 2, 3]
        assert rows[0]["response"]["output"][0]["content"][0]["text"] == BREAKS
        assert list(client.rollouts("a", from_line=2)) == rows[2:]
        assert client.cancel("a").state == "finished"
        assert client.resume("a").state == "finished"
        assert client.status("a") == client.runs()[0]
        with pytest.raises(ConflictError, match="not at work: finished"):
            client.pause("a")
        with pytest.raises(ConflictError):
            client.set_concurrency("a", 2)
        with pytest.raises(RunNotFoundError):
            next(client.rollouts("b"))


async def test_the_error_of_the_service_is_raised_as_its_own_class(collector: AsyncCollectorClient) -> None:
    with pytest.raises(InputError, match="exactly one of"):
        await collector.start(RunRequest())
    with pytest.raises(ServiceNotFoundError, match="nobody"):
        await collector.start(RunRequest(rows=[{"agent_ref": {"name": "nobody"}}]))
    await collector.start(request())
    with pytest.raises(ConflictError):
        await collector.start(request(3))
    with pytest.raises(RunNotFoundError):
        await collector.status("b")
    with pytest.raises(RunNotFoundError):
        await anext(collector.rollouts("b"))
    with pytest.raises(InputError, match="/concurrency"):
        await collector.set_concurrency("a", 0)


async def test_a_service_that_is_not_there_is_a_connect_error(unused_url: str) -> None:
    async with AsyncCollectorClient(unused_url) as client:
        with pytest.raises(ConnectError, match=unused_url):
            await client.runs()


@pytest.fixture
async def unused_url() -> str:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return f"http://127.0.0.1:{port}"


async def test_the_token_is_shown_and_needed(bench: Bench, serve: Serve) -> None:
    async with serve(bench.app(token=SecretStr("open sesame"))) as url:
        async with AsyncCollectorClient(url) as stranger:
            with pytest.raises(UnauthorizedError):
                await stranger.runs()
            with pytest.raises(UnauthorizedError):
                await anext(stranger.rollouts("a"))
        async with AsyncCollectorClient(url, token="open sesame") as client:
            assert await client.runs() == []


@pytest.mark.parametrize("torn", [b'{"a":1}\n', b'{"a":1}\n{"b"'])
async def test_a_stream_without_its_last_line_is_an_error_after_its_rollouts(torn: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + torn)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with AsyncCollectorClient(url) as client:
            seen: list[Row] = []
            with pytest.raises(UpstreamError, match="without its last line"):
                await read_into(seen, client)
    assert seen == [{"a": 1}]


async def test_a_failed_run_raises_after_its_rollouts(collector: AsyncCollectorClient, bench: Bench) -> None:
    bench.desk.open = False
    await collector.start(request(2))
    await until(lambda: (bench.data_dir / "a" / "rollouts_manifest.json").exists())
    (bench.data_dir / "a" / "rollouts_aggregate_metrics.json").mkdir()  # nothing can be written over a folder
    bench.desk.let(2)
    seen: list[Row] = []
    with pytest.raises(RollmillError, match="aggregate_metrics"):
        await read_into(seen, collector)

    assert len(seen) == 2


async def test_a_paused_run_starts_nothing_further_until_it_is_resumed(
    collector: AsyncCollectorClient, bench: Bench
) -> None:
    bench.desk.open = False
    await collector.start(request(concurrency=2))
    await until(lambda: bench.desk.at_work == 2)

    assert (await collector.pause("a")).state == "paused"
    bench.desk.let(2)
    status = await settled(collector, 2)
    await asyncio.sleep(0.05)
    assert (status.state, len(bench.desk.started)) == ("paused", 2)
    assert (await collector.resume("a")).state == "running"
    bench.desk.let(2)
    assert (await finished(collector)).completed == 4


async def test_the_concurrency_changes_while_the_run_is_at_work(collector: AsyncCollectorClient, bench: Bench) -> None:
    bench.desk.open = False
    await collector.start(request(8, concurrency=1))
    await until(lambda: bench.desk.at_work == 1)

    assert (await collector.set_concurrency("a", 3)).concurrency == 3
    await until(lambda: bench.desk.at_work == 3)
    await collector.set_concurrency("a", 1)
    bench.desk.let(2)
    await settled(collector, 2)
    await asyncio.sleep(0.05)
    assert (bench.desk.at_work, len(bench.desk.started)) == (1, 3)
    bench.desk.let(6)
    assert (await finished(collector)).completed == 8


async def test_a_cancelled_run_keeps_what_is_settled_and_is_resumed_exactly_once(
    collector: AsyncCollectorClient, bench: Bench
) -> None:
    bench.desk.open = False
    await collector.start(request(6, concurrency=2))
    bench.desk.let(3)
    await settled(collector, 3)

    cancelled = await collector.cancel("a")
    assert (cancelled.state, cancelled.completed, bench.desk.at_work) == ("cancelled", 3, 0)
    assert (state_on_disk(bench), len(keys_on_disk(bench))) == ("cancelled", 3)
    assert (await collector.cancel("a")).state == "cancelled"
    bench.desk.open = True
    resumed = await asyncio.gather(*(collector.resume("a") for _ in range(3)))
    assert {status.run_id for status in resumed} == {"a"}
    assert (await finished(collector)).completed == 6
    assert sorted(keys_on_disk(bench)) == [0, 1, 2, 3, 4, 5]
    assert len(bench.desk.started) == 3 + 2 + 3  # settled, cancelled in flight, resumed


async def test_a_paused_run_can_be_cancelled(collector: AsyncCollectorClient, bench: Bench) -> None:
    bench.desk.open = False
    await collector.start(request())
    await collector.pause("a")

    assert (await collector.cancel("a")).state == "cancelled"
    bench.desk.open = True
    await collector.resume("a")
    assert (await finished(collector)).completed == 4


async def test_posting_a_stopped_run_with_resume_goes_on_with_the_new_concurrency(
    collector: AsyncCollectorClient, bench: Bench
) -> None:
    bench.desk.open = False
    await collector.start(request())
    await collector.cancel("a")

    assert (await collector.start(request())).state == "cancelled"
    assert (await collector.start(request(resume=True, concurrency=3))).concurrency == 3
    bench.desk.let(4)
    assert (await finished(collector)).completed == 4


async def test_a_run_stopped_by_its_budget_goes_on_with_a_larger_one_and_the_next_service_knows_it(
    collector: AsyncCollectorClient, bench: Bench
) -> None:
    await collector.start(request(6, concurrency=1, max_wall_seconds=0.001))
    stopped = await finished(collector, "stopped")
    assert (stopped.state, stopped.budget.max_wall_seconds) == ("stopped", 0.001)
    assert "seconds at work" in stopped.error
    assert state_on_disk(bench) == "stopped"

    await collector.resume("a")  # the same budget
    assert (await finished(collector, "stopped")).completed < 6
    await collector.start(request(6, concurrency=1, max_wall_seconds=600, resume=True))
    status = await finished(collector)
    assert (status.state, status.completed, status.budget.max_wall_seconds) == ("finished", 6, 600)
    assert loads((bench.data_dir / "a" / "request.json").read_bytes())["request"]["max_wall_seconds"] == 600


async def test_a_run_whose_service_stops_is_interrupted_and_the_next_service_goes_on(
    bench: Bench, serve: Serve
) -> None:
    bench.desk.open = False
    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        created = (await client.start(request(6, concurrency=2))).created_at
        bench.desk.let(3)
        await settled(client, 3)
    assert state_on_disk(bench) == "interrupted"

    bench.desk.open = True
    async with serve(bench.app(recover=False)) as url, AsyncCollectorClient(url) as client:
        [status] = await client.runs()
        assert (status.state, status.completed, status.expected) == ("interrupted", 3, 6)
        assert len([row async for row in client.rollouts("a")]) == 3
        assert (await client.cancel("a")).state == "interrupted"
        with pytest.raises(ConflictError, match="not at work: interrupted"):
            await client.pause("a")
        await client.resume("a")
        status = await finished(client)
        assert (await client.runs())[0].created_at == created
    assert (status.completed, status.mean_reward) == (6, 1.0)
    assert sorted(keys_on_disk(bench)) == [0, 1, 2, 3, 4, 5]


async def test_a_run_that_was_accepted_but_never_begun_is_interrupted_and_can_be_resumed(
    bench: Bench, serve: Serve
) -> None:
    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        await client.start(request())
        await finished(client)
    for path in (bench.data_dir / "a").glob("rollouts*"):  # as after a kill right after the answer
        path.unlink()

    async with serve(bench.app(recover=False)) as url, AsyncCollectorClient(url) as client:
        assert [run.state for run in await client.runs()] == ["interrupted"]
        await client.resume("a")
        assert (await finished(client)).completed == 4


async def test_a_service_goes_on_by_itself_with_what_its_predecessor_left(bench: Bench, serve: Serve) -> None:
    bench.desk.open = False
    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        await client.start(request(6, concurrency=2))
        bench.desk.let(3)
        await settled(client, 3)

    bench.desk.open = True
    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        status = await finished(client)
    assert (status.completed, status.mean_reward) == (6, 1.0)
    assert sorted(keys_on_disk(bench)) == [0, 1, 2, 3, 4, 5]


async def test_a_run_that_was_paused_and_slowed_is_so_in_the_next_service_too(bench: Bench, serve: Serve) -> None:
    bench.desk.open = False
    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        await client.start(request(6, concurrency=4))
        await until(lambda: bench.desk.at_work == 4)
        await client.set_concurrency("a", 2)
        await client.pause("a")
        bench.desk.let(4)
        await settled(client, 4)

    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        assert (await finished(client, "paused")).concurrency == 2
        assert len(bench.desk.started) == 4
        assert (await client.resume("a")).state == "running"
        bench.desk.let(2)
        assert (await finished(client)).completed == 6
    async with serve(bench.app(recover=False)) as url, AsyncCollectorClient(url) as client:
        assert (await client.status("a")).state == "finished"


async def test_a_paused_run_that_was_interrupted_is_resumed_at_work(bench: Bench, serve: Serve) -> None:
    bench.desk.open = False
    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        await client.start(request())
        await client.pause("a")
    async with serve(bench.app(recover=False)) as url, AsyncCollectorClient(url) as client:
        assert (await client.resume("a")).state == "running"
        bench.desk.let(4)
        assert (await finished(client)).completed == 4


async def test_a_cancelled_run_is_left_alone_by_the_next_service(bench: Bench, serve: Serve) -> None:
    bench.desk.open = False
    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        await client.start(request())
        await client.cancel("a")
    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        await asyncio.sleep(0.2)
        assert (await client.status("a")).state == "cancelled"


async def test_a_run_is_profiled_through_the_profiler(bench: Bench, serve: Serve) -> None:
    async with serve(bench.app()) as url, AsyncCollectorClient(url) as client:
        await client.start(request(2, num_repeats=2))
        await finished(client)
    async with serve(create_profiler(ProfilerSettings(data_dir=bench.data_dir))) as url:
        async with AsyncProfilerClient(url) as profiler:
            profile = await profiler.run_profile("a", level="task")
            with pytest.raises(RunNotFoundError):
                await profiler.run_profile("b")
            compared = await profiler.compare("a", "a")
            with pytest.raises(RunNotFoundError):
                await profiler.compare("a", "b", force=True)
        assert await asyncio.to_thread(_profile, url) == profile
        assert await asyncio.to_thread(_compare, url) == compared
    assert [task["mean/reward"] for task in profile["tasks"]] == [1.0, 1.0]
    [agent] = compared["agents"].values()
    assert (agent["difference"]["value"], agent["wins"]) == (0.0, {"a": 0, "b": 0, "ties": 2})


def _compare(url: str) -> JsonObject:
    with ProfilerClient(url) as profiler:
        return profiler.compare("a", "a")


def _profile(url: str) -> JsonObject:
    with ProfilerClient(url) as profiler:
        return profiler.run_profile("a", level="task")
