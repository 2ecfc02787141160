from collections.abc import Awaitable, Callable

from fastapi import Request


def from_state(name: str) -> Callable[[Request], Awaitable[object]]:
    """Make a dependency: what the application's lifespan put into its state under this name.

    It is asynchronous because FastAPI would call a plain function in a thread of its own.
    """

    async def get(request: Request) -> object:
        value: object = getattr(request.app.state, name)
        return value

    return get
