import string
from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError, field_validator

from rollmill.config.yaml_files import read_yaml
from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import Row
from rollmill.contracts.wire import WireModel
from rollmill.errors import InputError


class PromptConfig(WireModel):
    """Templates that make a row's input: `{field}` is a top-level field of the row, `{{` and `}}` are braces."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str = Field(min_length=1)
    system: str | None = None

    @field_validator("user", "system")
    @classmethod
    def _plain_fields(cls, template: str | None) -> str | None:
        """Only plain names: a template must not reach into Python objects."""
        if template is not None:
            _template_fields(template)
        return template

    def fields(self) -> set[str]:
        """Return the row fields that the templates use."""
        return _template_fields(self.user) | _template_fields(self.system or "")

    def render(self, row: Row) -> list[JsonObject]:
        """Make the `input` items of a row that has every field."""
        messages: list[JsonObject] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system.format_map(row)})
        return [*messages, {"role": "user", "content": self.user.format_map(row)}]

    def apply(self, row: Row) -> Row:
        """Return the row with its rendered input."""
        params = row.get(rows.PARAMS)
        rest = params if isinstance(params, dict) else {}
        return {**row, rows.PARAMS: {**rest, "input": self.render(row)}}


def has_input(row: Row) -> bool:
    """Say whether a row already has an input, which a prompt config would overwrite."""
    params = row.get(rows.PARAMS)
    return isinstance(params, dict) and bool(params.get("input"))


def load_prompt(path: str | Path) -> PromptConfig:
    """Read a prompt config from YAML.

    Raises:
        InputError: the file cannot be read or is not a prompt config; says where.
    """
    value = read_yaml(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: a prompt config is a mapping with 'user' and, if wanted, 'system'")
    return parse_prompt(value, where=str(path))


def parse_prompt(value: JsonObject, *, where: str) -> PromptConfig:
    """Validate a prompt config.

    Raises:
        InputError: lists every fault, after `where`.
    """
    try:
        return PromptConfig.model_validate(value)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors(include_url=False)]
        raise InputError(f"{where}: {'; '.join(faults)}") from None


def _template_fields(template: str) -> set[str]:
    fields = [(name, spec) for _, name, spec, _ in string.Formatter().parse(template) if name is not None]
    names = {name for name, _ in fields}
    nested = {f"{name}:{spec}" for name, spec in fields if "{" in (spec or "")}
    wrong = sorted(nested | {name for name in names if not name.isidentifier()})
    if wrong:
        shown = ", ".join("{" + name + "}" for name in wrong)
        raise ValueError(f"only plain field names are allowed, got {shown}; write {{{{ and }}}} for literal braces")
    return names
