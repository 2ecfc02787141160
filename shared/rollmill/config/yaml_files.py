from pathlib import Path

import yaml

from rollmill.contracts.json import JsonValue
from rollmill.errors import InputError


def read_yaml(path: str | Path) -> JsonValue:
    """Read a small YAML file whose content is checked by the caller.

    Raises:
        InputError: the file cannot be read, or is not YAML; names it.
    """
    try:
        value: JsonValue = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid YAML: {error}") from None
    return value
