"""Tools that a resources server declares: typed methods marked with `@tool`.

The method's signature is the tool's JSON schema. Only declared tools can be called by a model, whatever else the
server answers to.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.errors import InputError
from rollmill.errors import ToolError as ToolError
from rollmill.server.sessions import Session

_MARK = "__rollmill_tool__"
RESERVED_NAMES = frozenset(
    {"verify", "seed_session", "close_session", "aggregate_metrics", "reverify_mode", "reset", "step"}
    | {"livez", "readyz", "version", "metrics", "mcp", "docs", "redoc", "openapi.json", "v1", "run"}
)

ToolMethod = TypeVar("ToolMethod", bound=Callable[..., Awaitable[JsonValue]])


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


def tool(method: ToolMethod) -> ToolMethod:
    """Declare an async method of a `Resources` class as a tool.

    Its parameters, other than `self` and `session`, are the tool's arguments and need type annotations; its
    docstring is the description that models read. It returns text, or a JSON value that is sent as JSON text.
    """
    setattr(method, _MARK, True)
    return method


@dataclass(frozen=True, slots=True)
class Tool:
    """One declared tool, bound to its server."""

    name: str
    description: str
    arguments: type[BaseModel]
    method: Callable[..., Awaitable[JsonValue]]
    takes_session: bool

    @property
    def definition(self) -> JsonObject:
        """The tool as an entry of a Responses request's `tools`."""
        schema = self.arguments.model_json_schema()
        schema.pop("title", None)
        for prop in schema.get("properties", {}).values():
            prop.pop("title", None)
        schema.setdefault("properties", {})
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": schema,
            "strict": False,
        }

    async def call(self, session: Session, arguments: JsonObject) -> str:
        """Validate the arguments, run the tool and return its output text.

        Raises:
            InputError: the arguments do not fit the declared parameters; names each.
            ToolError: the tool refused the call.
        """
        try:
            parsed = self.arguments.model_validate(arguments)
        except ValidationError as error:
            raise InputError(_argument_faults(self.name, error)) from None
        values: dict[str, Any] = {name: getattr(parsed, name) for name in type(parsed).model_fields}
        if self.takes_session:
            values["session"] = session
        result = await self.method(**values)
        return result if isinstance(result, str) else dumps(result).decode()


def _argument_faults(name: str, error: ValidationError) -> str:
    faults = [f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in error.errors()]
    return f"invalid arguments for {name}: {'; '.join(faults)}"


def declared_tools(owner: object) -> dict[str, Tool]:
    """Collect the tools of a `Resources` instance, by name, in order of declaration.

    Raises:
        TypeError: a tool is not async, has an unannotated parameter, or has a name of the protocol's own.
    """
    tools: dict[str, Tool] = {}
    for name in _names_in_order(type(owner)):
        method = getattr(owner, name, None)
        if callable(method) and getattr(method, _MARK, False):
            tools[name] = _describe(name, method)
    return tools


def _names_in_order(cls: type) -> list[str]:
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        names.update(dict.fromkeys(vars(base)))
    return list(names)


def _describe(name: str, method: Callable[..., Awaitable[JsonValue]]) -> Tool:
    if name in RESERVED_NAMES:
        raise TypeError(f"tool {name!r}: the name is one of the protocol's own endpoints")
    if not inspect.iscoroutinefunction(method):
        raise TypeError(f"tool {name!r} must be an async method")
    hints = get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {}
    takes_session = False
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {name!r}: parameter {parameter.name!r} cannot be passed by its name")
        if parameter.name == "session":
            takes_session = True
            continue
        if parameter.name not in hints:
            raise TypeError(f"tool {name!r}: parameter {parameter.name!r} needs a type annotation")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], FieldInfo(default=default))
    model = create_model(f"{name}_arguments", __base__=_Arguments, **fields)
    return Tool(name, inspect.getdoc(method) or "", model, method, takes_session)
