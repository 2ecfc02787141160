"""The routes by which an `Environment` is played, as its host adds them to those of every resources server."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from rollmill.contracts.json import JsonObject
from rollmill.errors import InputError
from rollmill.server.calls import Answer, Call, HotRoute, RawHeaders, json_answer
from rollmill.server.environment import Environment
from rollmill.server.sessions import Session

OpenSession: TypeAlias = Callable[[Call], Awaitable[tuple[Session, RawHeaders]]]
"""Finds the caller's session, or opens one for the row in the body; with the headers that name it."""
FindSession: TypeAlias = Callable[[Call], Session]
UseSession: TypeAlias = Callable[[Session], AbstractContextManager[None]]

_ACTION: JsonObject = {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]}


def environment_routes(
    environment: Environment, *, opened: OpenSession, found: FindSession, using: UseSession
) -> list[HotRoute]:
    """Return the routes `/reset` and `/step`. The row in the body of `/reset` counts where there is no session yet."""

    async def reset(call: Call) -> Answer:
        session, headers = await opened(call)
        with using(session):
            return json_answer(await environment.begin(session), headers=headers)

    async def step(call: Call) -> Answer:
        action = call.json_object().get("action")
        if not isinstance(action, str):
            raise InputError("'action' must be text", errors=[{"pointer": "/action", "detail": "must be text"}])
        session = found(call)
        with using(session):
            return json_answer((await environment.advance(action, session)).wire())

    return [
        HotRoute("POST", "/reset", reset, "Begin an episode, of the row in the body", keyed=True, watched=True),
        HotRoute("POST", "/step", step, "Take an action", keyed=True, watched=True, request_schema=_ACTION),
    ]
