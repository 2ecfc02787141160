"""YAML text to plain JSON values, with every fault told by its YAML path.

Scalars follow the core schema of YAML 1.2: `no`, `on`, `1:30` and dates stay text, `1e-5` is a number. Mapping keys
are always text. `${VAR}` and `${VAR:-default}` inside string values are replaced after parsing, so that no
environment value can ever become YAML; `$$` is a literal `$`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import yaml
from yaml.error import Mark
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from rollmill.config.faults import Expanded, Fault, dotted
from rollmill.config.settings_refs import ValuePath
from rollmill.contracts.json import JsonObject, JsonValue

MAX_VALUES: Final = 200_000
"""A document may hold this many values after its aliases are expanded."""

_TAG = "tag:yaml.org,2002:"
_PLAIN_SCALARS: Final = (
    ("null", re.compile(r"~|null|Null|NULL|")),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE")),
    ("int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")),
    ("float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")),
    ("merge", re.compile(r"<<")),
)
_PLACEHOLDER: Final = re.compile(
    r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>([^}$]|\$(?!\{))*))?\}|(?P<malformed>\$\{[^}]*)"
)


@dataclass(frozen=True)
class YamlDocument:
    """What a YAML text says; with faults, the parts that could be read."""

    value: JsonValue
    faults: list[Fault]
    unreadable: frozenset[ValuePath] = frozenset()
    """Where a fault left null in place of a value, so that nobody tells the same problem again."""


def read_yaml(text: str, environ: Mapping[str, str]) -> YamlDocument:
    """Parse YAML text and expand its placeholders. Never raises: what is wrong is in `faults`."""
    try:
        node = _CoreSchemaLoader(text).get_single_node()
        converter = _Converter(environ)
        value = converter.convert(node, ()) if node else None
    except yaml.MarkedYAMLError as error:
        return YamlDocument(None, [_syntax_fault(error)])
    except yaml.reader.ReaderError as error:
        return YamlDocument(None, [Fault("", f"not YAML text: {error.reason} at character {error.position}")])
    except RecursionError:
        return YamlDocument(None, [Fault("", "nested too deeply")])
    return YamlDocument(value, list(converter.faults.values()), frozenset(converter.unreadable))


def _syntax_fault(error: yaml.MarkedYAMLError) -> Fault:
    # Only the parser's words: its full text quotes the lines around, which may hold a secret.
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return Fault(where, " ".join(filter(None, ("not valid YAML:", error.context, error.problem))))


class _CoreSchemaLoader(yaml.SafeLoader):
    def resolve(self, kind: type[Node], value: str | None, implicit: tuple[bool, bool] | bool) -> str:
        if kind is not ScalarNode:
            return _TAG + ("map" if kind is MappingNode else "seq")
        plain = isinstance(implicit, tuple) and implicit[0]
        forms = _PLAIN_SCALARS if plain else ()
        return _TAG + next((tag for tag, form in forms if form.fullmatch(value or "")), "str")


class _TooManyValues(yaml.MarkedYAMLError):
    pass


@dataclass
class _Converter:
    environ: Mapping[str, str]
    faults: dict[tuple[int, str], Fault] = field(default_factory=dict)
    """By place in the text, so that a fault inside an anchor is told once, however often the anchor is used."""
    unreadable: set[ValuePath] = field(default_factory=set)
    _open: list[Node] = field(default_factory=list)
    _count: int = 0

    def convert(self, node: Node, path: ValuePath) -> JsonValue:
        self._count += 1
        if self._count > MAX_VALUES:
            raise _TooManyValues(problem=f"more than {MAX_VALUES} values", problem_mark=node.start_mark)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if any(node is parent for parent in self._open):
            return self._unreadable(node, path, "an alias that holds itself")
        if node.tag not in (_TAG + "map", _TAG + "seq"):
            return self._unreadable(node, path, f"the tag {_shown_tag(node)} is not supported")
        self._open.append(node)
        try:
            if isinstance(node, SequenceNode):
                return [self.convert(child, (*path, index)) for index, child in enumerate(node.value)]
            return self._mapping(node, path) if isinstance(node, MappingNode) else None
        finally:
            self._open.pop()

    def _mapping(self, node: MappingNode, path: ValuePath) -> JsonObject:
        values: JsonObject = {}
        first: dict[str, Mark] = {}
        merges = [child for key, child in node.value if key.tag == _TAG + "merge"]
        for key, child in node.value:
            if key.tag == _TAG + "merge":
                continue
            if not isinstance(key, ScalarNode):
                self._fault(key, path, "a key must be text")
            elif key.value in first:
                lines = f"lines {first[key.value].line + 1} and {key.start_mark.line + 1}"
                self._fault(key, (*path, key.value), f"the key is there twice ({lines})")
            else:
                first[key.value] = key.start_mark
                values[key.value] = self.convert(child, (*path, key.value))
        for merge in merges:
            values = self._merged(merge, path) | values
        return values

    def _merged(self, node: Node, path: ValuePath) -> JsonObject:
        # YAML's merge key: a mapping, or a list of which earlier ones win; the keys written out win over both.
        found: JsonObject = {}
        for source in node.value if isinstance(node, SequenceNode) else [node]:
            value = self.convert(source, path)
            if isinstance(value, dict):
                found = value | found
            else:
                self._fault(source, path, "`<<` must merge a mapping, or a list of mappings")
        return found

    def _scalar(self, node: ScalarNode, path: ValuePath) -> JsonValue:
        tag = node.tag.removeprefix(_TAG)
        if tag in ("str", "merge"):
            return self._text(node, path)
        form = dict(_PLAIN_SCALARS).get(tag)
        if form is None:
            return self._unreadable(node, path, f"the tag {_shown_tag(node)} is not supported")
        if not form.fullmatch(node.value):
            return self._unreadable(node, path, f"the value does not fit its tag {_shown_tag(node)}")
        number = _simple_value(tag, node.value)
        if isinstance(number, int | float) and not _fits_json(number):
            return self._unreadable(node, path, "the number is too large")
        return number

    def _text(self, node: ScalarNode, path: ValuePath) -> JsonValue:
        missing: list[str] = []
        written: str = node.value
        text = _PLACEHOLDER.sub(lambda match: self._replacement(match, missing), written)
        for name in dict.fromkeys(missing):
            self._unreadable(node, path, _missing_variable(name))
        if missing:
            return None
        if not _is_unicode(text):
            return self._unreadable(node, path, "not valid Unicode text")
        expanded = any(match["name"] for match in _PLACEHOLDER.finditer(written))
        return Expanded(text, written) if expanded else text

    def _replacement(self, match: re.Match[str], missing: list[str]) -> str:
        if match["malformed"]:
            missing.append("")
            return ""
        name, default = match["name"], match["default"]
        if name is None:
            return "$"
        value = self.environ.get(name)
        if default is not None:
            return value or str(default).replace("$$", "$")
        if value is None:
            missing.append(name)
        return value or ""

    def _unreadable(self, node: Node, path: ValuePath, detail: str) -> None:
        self.unreadable.add(path)
        self._fault(node, path, detail)

    def _fault(self, node: Node, path: ValuePath, detail: str) -> None:
        self.faults.setdefault((node.start_mark.index, detail), Fault(dotted(*path), detail))


def _missing_variable(name: str) -> str:
    if not name:
        return "a placeholder is written ${NAME} or ${NAME:-default}, and a literal $ as $$"
    return f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}"


def _simple_value(tag: str, text: str) -> JsonValue:
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true"
    if tag == "float":
        return float(text)
    base = {"0x": 16, "0o": 8}.get(text[:2], 10)
    # Python refuses to parse thousands of digits; such a number is out of range anyway.
    return int(text, base) if len(text) < 100 else math.inf


def _fits_json(number: float) -> bool:
    return -(2**63) <= number < 2**64 if isinstance(number, int) else math.isfinite(number)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown_tag(node: Node) -> str:
    return str(node.tag).replace(_TAG, "!!")
