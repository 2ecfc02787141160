import subprocess
import sys
from pathlib import Path

import pytest

import rollmill
from rollmill import _NAMES

HEAVY = ("fastapi", "pandas", "aiohttp", "pydantic", "httpx", "numpy", "typer", "yaml", "orjson", "structlog")


@pytest.mark.parametrize("name", sorted(_NAMES))
def test_a_public_name_is_what_its_module_defines(name: str) -> None:
    value = getattr(rollmill, name)

    assert value is getattr(sys.modules[_NAMES[name]], name)
    assert vars(rollmill)[name] is value  # found at once from now on


def test_all_lists_the_public_names_and_the_version_in_order() -> None:
    assert sorted(rollmill.__all__) == sorted([*_NAMES, "__version__"])
    assert len(set(rollmill.__all__)) == len(rollmill.__all__)
    assert rollmill.__version__


def test_type_checkers_are_told_the_same_names() -> None:
    source = Path(str(rollmill.__file__)).read_text(encoding="utf-8")
    block = source[source.index("if TYPE_CHECKING:") : source.index("_NAMES")]
    words = set(block.replace(",", " ").replace("(", " ").replace(")", " ").split())

    assert [name for name in _NAMES if name not in words] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rollmill' has no attribute 'nothing'"):
        rollmill.nothing  # noqa: B018


@pytest.mark.parametrize("name", ["agent_app", "model_app", "resources_app"])
def test_an_application_builder_is_a_function_wherever_it_is_imported_from_first(name: str) -> None:
    code = f"from rollmill import {name} as a; from rollmill.server import {name} as b; print(a is b, callable(a))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_importing_rollmill_loads_nothing_heavy() -> None:
    code = f"import sys, rollmill; print([name for name in {HEAVY!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
