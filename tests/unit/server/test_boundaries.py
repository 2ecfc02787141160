import asyncio

import pytest

from rollmill.config.settings import ServiceSettings
from rollmill.errors import DeadlineError, InputError, NotReadyError, OverloadedError, RollmillError, UpstreamError
from rollmill.server.background import background
from rollmill.server.phases import upstream
from rollmill.server.runtime import Runtime


@pytest.mark.parametrize("cls", [OverloadedError, NotReadyError, DeadlineError])
def test_overload_and_passed_deadlines_keep_their_class(cls: type[RollmillError]) -> None:
    with pytest.raises(cls) as caught, upstream("model"):
        raise cls("x")
    assert caught.value.extensions["boundary"] == "model"


def test_anything_else_becomes_an_upstream_failure_with_the_originals_type_and_status() -> None:
    with pytest.raises(UpstreamError) as caught, upstream("resources"):
        raise InputError("bad row", service="shop")
    assert caught.value.extensions == {
        "boundary": "resources",
        "service": "shop",
        "upstream_type": "invalid-request",
        "upstream_status": 422,
        "retryable": False,
    }


def test_the_service_that_failed_is_named_not_the_one_that_noticed() -> None:
    with pytest.raises(UpstreamError) as caught, upstream("resources"), upstream("model"):
        raise UpstreamError("judge failed", upstream_status=500, upstream_type="x", retryable=True)
    extensions = caught.value.extensions
    assert (extensions["boundary"], extensions["upstream_status"], extensions["retryable"]) == ("model", 500, True)


def test_other_exceptions_pass_untouched() -> None:
    with pytest.raises(ZeroDivisionError), upstream("model"):
        raise ZeroDivisionError


async def test_work_in_the_background_ends_with_its_block() -> None:
    ended = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with background(forever(), name="x"):
        await asyncio.sleep(0)
    assert ended.is_set()


async def test_work_in_the_background_that_breaks_does_not_break_its_block() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async with background(broken(), name="x"):
        await asyncio.sleep(0.01)


def test_a_service_that_is_not_started_has_no_client() -> None:
    with pytest.raises(RuntimeError, match="lifespan"):
        _ = Runtime(ServiceSettings(), "model").client


def test_draining_tells_whoever_asked() -> None:
    told: list[str] = []
    runtime = Runtime(ServiceSettings(), "model", on_drain=[lambda: told.append(runtime.not_ready)])
    runtime.drain()
    assert told == ["draining"]
