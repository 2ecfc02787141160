"""What a settings class says about its values: which of them name other services, and which are secret.

A topology is checked as a whole before anything starts, so it has to know which strings are service names:
`model: Annotated[str, ServiceRef("model")]`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, NamedTuple, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.services import Kind

ValuePath: TypeAlias = tuple[str | int, ...]
"""Where a value is inside nested mappings and lists."""
_Annotation: TypeAlias = object  # typing has no common type for what an annotation may be


@dataclass(frozen=True, slots=True)
class ServiceRef:
    """This setting is the name of a service of the topology, or a list or mapping of such names."""

    kind: Kind | None = None
    """The kind that the named service must have; None allows any."""


@dataclass(frozen=True, slots=True)
class Incidental:
    """This setting says where or how fast something runs, not what it does: a run may be resumed with another."""


@dataclass(frozen=True, slots=True)
class FileRef:
    """This setting is a path, or a list of paths; in a topology they are relative to its file."""


class Reference(NamedTuple):
    """A service named by a setting."""

    path: ValuePath
    """Below the settings."""
    name: str
    kind: Kind | None


def references(settings_type: type[BaseModel], values: Mapping[str, JsonValue]) -> list[Reference]:
    """Find the services that settings name, also those named by a default. An empty name means none."""
    found = [
        Reference(below, text, mark.kind)
        for path, value, annotation in _places(settings_type, {**_defaults(settings_type), **values}, ())
        for mark in getattr(annotation, "__metadata__", ())
        if isinstance(mark, ServiceRef)
        for below, text in texts(value, path)
        if text
    ]
    return list(dict.fromkeys(found))


def secret_paths(settings_type: type[BaseModel], values: Mapping[str, JsonValue]) -> set[ValuePath]:
    """Find the values that the settings class declares as `SecretStr` or `SecretBytes`."""
    return {path for path, _, annotation in _places(settings_type, dict(values), ()) if _is_secret(annotation)}


def incidental_paths(settings_type: type[BaseModel], values: Mapping[str, JsonValue]) -> set[ValuePath]:
    """Find the values that do not count when two configurations are compared: secrets and incidental ones."""
    return secret_paths(settings_type, values) | {path for path, _ in _marked(settings_type, values, Incidental)}


def with_absolute_files(settings_type: type[BaseModel], values: Mapping[str, JsonValue], folder: Path) -> JsonObject:
    """Return settings whose file paths start at `folder` instead of the working directory."""
    places = {
        (*path, *below): str(folder / text)
        for path, value in _marked(settings_type, values, FileRef)
        for below, text in texts(value)
    }
    replaced: JsonObject = _replaced(dict(values), (), places)
    return replaced


def _replaced(value: JsonValue, path: ValuePath, places: Mapping[ValuePath, str]) -> JsonValue:
    if isinstance(value, dict):
        return {key: _replaced(item, (*path, key), places) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, (*path, index), places) for index, item in enumerate(value)]
    return places.get(path, value)


def _marked(
    settings_type: type[BaseModel], values: Mapping[str, JsonValue], mark_type: type
) -> Iterator[tuple[ValuePath, JsonValue]]:
    for path, value, annotation in _places(settings_type, dict(values), ()):
        if any(isinstance(mark, mark_type) for mark in getattr(annotation, "__metadata__", ())):
            yield path, value


def texts(value: JsonValue, path: ValuePath = ()) -> Iterator[tuple[ValuePath, str]]:
    """Yield every string inside a JSON value with its path."""
    if isinstance(value, str):
        yield path, value
    for key, item in _items(value):
        yield from texts(item, (*path, key))


def _places(
    annotation: _Annotation, value: JsonValue, path: ValuePath
) -> Iterator[tuple[ValuePath, JsonValue, _Annotation]]:
    """Walk a type and a value together and yield each place that has both."""
    yield path, value, annotation
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _places(args[0], value, path)
    elif origin in (Union, UnionType):
        for alternative in args:
            yield from _places(alternative, value, path)
    elif args:
        # list[X], tuple[X, ...], dict[str, X]: the last argument that is a type holds for every value inside.
        inner = [arg for arg in args if arg is not Ellipsis][-1]
        for key, item in _items(value):
            yield from _places(inner, item, (*path, key))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, dict):
        for name, field in annotation.model_fields.items():
            if name in value:
                yield from _places(field.rebuild_annotation(), value[name], (*path, name))


def _items(value: JsonValue) -> Iterator[tuple[str | int, JsonValue]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _is_secret(annotation: _Annotation) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, SecretStr | SecretBytes)


def _defaults(settings_type: type[BaseModel]) -> JsonObject:
    fields = settings_type.model_fields.items()
    return {name: field.default for name, field in fields if not field.is_required()}
