"""The rules of the code base that no linter knows: sizes, and who may import whom."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "shared").rglob("*.py"), *(ROOT / "services").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
ALL = [*SOURCES, *TESTS, *BENCHMARKS]

MAX_FILE_LINES, MAX_TEST_FILE_LINES, MAX_FUNCTION_LINES = 400, 600, 60
NO_FRAMEWORK = ("fastapi", "starlette", "uvicorn", "httpx", "aiohttp")
ANY_ALLOWED = {
    "shared/rollmill/contracts/json.py": "the one place where untyped JSON enters",
    "shared/rollmill/client/asgi.py": "the ASGI specification's own types",
    "shared/rollmill/server/tools.py": "signatures of authors' tools",
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", ALL, ids=name)
def test_files_and_functions_stay_small(path: Path) -> None:
    limit = MAX_TEST_FILE_LINES if path in TESTS else MAX_FILE_LINES
    lines = len(path.read_text(encoding="utf-8").splitlines())
    functions = [n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [f.name for f in functions if _body_lines(f) > MAX_FUNCTION_LINES]

    assert lines <= limit
    assert long == []


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature, which may declare a command's many options."""
    return (function.end_lineno or 0) - function.body[0].lineno + 1


@pytest.mark.parametrize("path", [p for p in SOURCES if "rollmill_services" not in p.parts], ids=name)
def test_the_library_never_imports_the_services(path: Path) -> None:
    assert [module for module in imported(path) if module.startswith("rollmill_services")] == []


@pytest.mark.parametrize("path", [p for p in SOURCES if "rollmill_services" in p.parts], ids=name)
def test_services_never_import_each_other(path: Path) -> None:
    parts = path.relative_to(ROOT / "services").parts[:-1]
    own = ".".join(parts)
    foreign = [m for m in imported(path) if m.startswith("rollmill_services.") and not m.startswith(own)]

    assert foreign == []


@pytest.mark.parametrize("package", ["contracts", "metrics", "openai", "grading"])
def test_pure_packages_know_no_framework_and_no_client(package: str) -> None:
    files = (ROOT / "shared/rollmill" / package).rglob("*.py")
    found = {(name(path), module) for path in files for module in imported(path)}

    assert {(file, m) for file, m in found if m.split(".")[0] in NO_FRAMEWORK} == set()


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_any_stays_at_the_parse_boundary(path: Path) -> None:
    if name(path) in ANY_ALLOWED:
        return

    assert "typing.Any" not in set(imported(path))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_importing_a_module_calls_nothing_that_reaches_outside(path: Path) -> None:
    """No environment, file, logging set-up or application at import: those belong to functions and lifespans."""
    forbidden = {"open", "getenv", "mkdir", "read_text", "write_text", "read_bytes", "basicConfig", "configure", "run"}
    calls = [
        _called(node)
        for statement in tree(path).body
        if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    ]

    assert [call for call in calls if call in forbidden] == []


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
