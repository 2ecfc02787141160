"""YAML as its core schema (YAML 1.2, section 10.3) reads it: `no` is a text, and so is `2024-05-01`."""

import re

import yaml


class CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader, with the plain scalars of YAML 1.2 in place of those of YAML 1.1."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute


def _whole(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    base = {"0x": 16, "0o": 8}.get(text[:2], 10)
    return int(text[2:] if base != 10 else text, base)


def _fraction(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node).replace(".inf", "inf").replace(".nan", "nan").lower())


for _tag, _pattern, _first in (
    ("null", r"null|Null|NULL|~|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))
CoreLoader.add_constructor("tag:yaml.org,2002:int", _whole)
CoreLoader.add_constructor("tag:yaml.org,2002:float", _fraction)
