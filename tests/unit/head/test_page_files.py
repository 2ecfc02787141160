"""The page's files: what they are made of, and what they must never do."""

import json
import re
from pathlib import Path

import pytest

from rollmill.errors import NotFoundError
from rollmill_services.head.assets import Assets

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "services/rollmill_services/head/page"
OWN = sorted(path for path in PAGE.rglob("*.js") if path.parent.name != "vendor")
BUNDLES = {"preact.js": ["preact", "htm"], "uplot.js": ["uplot"]}


def name(path: Path) -> str:
    return path.relative_to(PAGE).as_posix()


@pytest.mark.parametrize("bundle", BUNDLES)
def test_the_bundled_libraries_are_those_of_the_lock_file(bundle: str) -> None:
    packages = json.loads((ROOT / "web/package-lock.json").read_text())["packages"]
    wanted = ", ".join(f"{package} {packages[f'node_modules/{package}']['version']}" for package in BUNDLES[bundle])

    assert (PAGE / "vendor" / bundle).read_text().splitlines()[0] == f"/* {wanted} */"


@pytest.mark.parametrize("bundle", BUNDLES)
def test_every_bundle_comes_with_the_licences_of_its_libraries(bundle: str) -> None:
    licences = (PAGE / "vendor" / bundle.replace(".js", ".licence.txt")).read_text()

    assert licences.count("Permission is hereby granted") + licences.count("Apache License") >= len(BUNDLES[bundle])


@pytest.mark.parametrize("path", OWN, ids=name)
def test_no_module_can_turn_text_into_markup_or_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", text) == []
    )
    assert re.findall(r"localStorage|sessionStorage|document\.cookie|https?://(?!AGENT)", text) == []


@pytest.mark.parametrize("path", OWN, ids=name)
def test_modules_of_the_page_stay_small_and_import_what_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    imported = re.findall(r"""(?:from|import\() ?["'](\.[^"']+)["']""", text)

    assert len(text.splitlines()) <= 400
    assert [place for place in imported if not (path.parent / place).resolve().is_file()] == []


def test_the_page_fetches_nothing_from_elsewhere() -> None:
    index = (PAGE / "index.html").read_text()
    addresses = re.findall(r"""(?:src|href)=["']([^"']+)""", index)

    assert addresses
    assert [address for address in addresses if not address.startswith("/ui/static/")] == []
    assert re.findall(r"url\(|@import", (PAGE / "page.css").read_text()) == []


def test_assets_are_found_by_their_path_and_nothing_else_is() -> None:
    assets = Assets()

    assert assets.get("vendor/preact.js").media_type.startswith("text/javascript")
    assert assets.get("app.js").etag == Assets().get("app.js").etag
    for wrong in ("", ".", "..", "../app.py", "vendor", "nope.js", "vendor//preact.js", "/app.js"):
        with pytest.raises(NotFoundError):
            assets.get(wrong)
