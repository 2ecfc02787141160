import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import pytest

from rollmill import __version__
from rollmill.server.identity import class_identity
from rollmill.server.resources import Resources
from rollmill_services.resources.weather import verifier


def test_a_class_of_rollmill_is_known_by_name_version_and_code() -> None:
    [found] = [c for c in vars(verifier).values() if isinstance(c, type) and c.__module__ == verifier.__name__][:1]

    assert class_identity(found) == {
        "name": f"{verifier.__name__}:{found.__name__}",
        "version": __version__,
        "digest": sha256(Path(str(verifier.__file__)).read_bytes()).hexdigest(),
    }


def test_a_class_of_no_package_has_no_version() -> None:
    class Own(Resources):
        pass

    found = class_identity(Own)

    assert found["name"].endswith(":test_a_class_of_no_package_has_no_version.<locals>.Own")
    assert "version" not in found


def test_a_class_whose_file_is_gone_has_no_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("gone_module")
    module.__file__ = str(tmp_path / "gone.py")
    monkeypatch.setitem(sys.modules, "gone_module", module)

    assert class_identity(type("Gone", (), {"__module__": "gone_module"})) == {"name": "gone_module:Gone"}


def test_the_version_of_an_installed_package_is_told() -> None:
    assert class_identity(pytest.MonkeyPatch)["name"].startswith("_pytest")
    assert class_identity(type("X", (), {"__module__": "pytest.x"})) == {
        "name": "pytest.x:X",
        "version": pytest.__version__,
    }
