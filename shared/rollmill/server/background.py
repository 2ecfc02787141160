import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

import structlog

log = structlog.get_logger(__name__)


@asynccontextmanager
async def background(work: Coroutine[object, object, None], *, name: str) -> AsyncIterator[None]:
    """Run a coroutine beside the block and cancel it at the end; if it breaks, that is logged, not hidden."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background_task_failed", task=task.get_name(), exc_info=error)
