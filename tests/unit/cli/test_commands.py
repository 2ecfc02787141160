import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner, Result

from rollmill._version import __version__
from rollmill.cli.list import installed
from rollmill.cli.main import COMMANDS, build_cli
from rollmill.cli.up import next_commands
from rollmill.config.topology import load_topology
from rollmill.local.processes import process_ref
from rollmill.local.state import Deployment, ProcessRecord, StateDir

TOPOLOGY = """
services:
  policy: {kind: model, use: scripted}
  weather: {kind: resources, use: weather, replicas: 2}
  weather_agent: {kind: agent, use: tool_loop, settings: {model: policy, resources: weather}}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateDir]:
    """A state folder, a current folder and logging of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLMILL_HOME", str(tmp_path / "home"))
    for name in ("ROLLMILL_TOKEN", "ROLLMILL_TOKEN_FILE", "ROLLMILL_HEAD_URL", "ROLLMILL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield StateDir(tmp_path / "home")
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "topology.yaml"
    path.write_text(TOPOLOGY)
    return path


def rollmill(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_cli(), [str(argument) for argument in arguments])


def test_every_command_of_the_contract_is_there_with_a_description() -> None:
    names = [name for name, _ in COMMANDS]

    assert set(names) >= {"up", "status", "down", "serve", "collect", "profile", "render", "validate", "list", "token"}
    assert all(command.__doc__ for _, command in COMMANDS)
    assert all(name in rollmill("--help").stdout for name in names)


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS])
def test_every_command_has_help(name: str) -> None:
    result = rollmill(name, "--help")

    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = ("pydantic", "fastapi", "aiohttp", "httpx", "pandas", "numpy", "structlog", "uvicorn", "yaml")
    code = (
        "import sys\nfrom rollmill.cli import main\nsys.argv = ['rollmill', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print(sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stderr.strip() == "[]"


def test_the_end_of_a_collection_without_exporters_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom rollmill.cli.export import export_collected\n"
        "export_collected(Path('x.jsonl'), {}, rollouts=False)\n"
        "print(sorted({'pandas', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


def test_the_package_can_be_run_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "rollmill", "--version"], capture_output=True, text=True, check=True)

    assert result.stdout == f"{__version__}\n"


def test_wrong_usage_exits_with_2() -> None:
    assert rollmill("no_such_command").exit_code == 2
    assert rollmill("validate").exit_code == 2
    assert rollmill("--log-level", "LOUD", "token").exit_code == 2
    assert rollmill("up", "-c", "x.yaml", "--head-port", "70000").exit_code == 2
    assert rollmill("up", "-c", "x.yaml", "--log-level", "LOUD").exit_code == 2


def test_token_prints_one_token_and_always_the_same(home: StateDir) -> None:
    first, second = rollmill("token"), rollmill("token")

    assert first.stdout == second.stdout == f"{home.token()}\n"
    assert first.stderr == ""


def test_token_prints_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_TOKEN", "given")

    assert rollmill("token").stdout == "given\n"


def test_token_refuses_one_that_others_can_read(home: StateDir) -> None:
    home.token()
    (home.path / "token").chmod(0o644)

    result = rollmill("token")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "run: chmod 600" in result.stderr


def test_validate_sums_up_a_good_topology(topology: Path) -> None:
    result = rollmill("validate", "-c", topology)

    assert result.exit_code == 0
    assert "OK, 3 services (1 model, 1 resources, 1 agent) in 4 processes, 0 datasets" in result.stdout


def test_validate_lists_every_problem(topology: Path) -> None:
    topology.write_text(TOPOLOGY.replace("policy, res", "polcy, res").replace("replicas: 2", "replicas: 0"))

    result = rollmill("validate", "-c", topology)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert "services.weather_agent.settings.model" in result.stderr
    assert "services.weather.replicas" in result.stderr


def test_up_refuses_a_bad_topology_before_anything_starts(topology: Path, home: StateDir) -> None:
    topology.write_text("services: {x: {kind: model, use: no_such}}")

    result = rollmill("up", "-c", topology, "--detach")

    assert result.exit_code == 1
    assert "unknown service 'no_such'" in result.stderr
    assert not (home.path / "services.json").exists()


def test_after_up_one_can_collect_and_call(topology: Path, tmp_path: Path) -> None:
    plain, call = next_commands(load_topology(topology), "http://h:1")
    (tmp_path / "t.jsonl").write_text("{}\n")
    topology.write_text(f"{TOPOLOGY}datasets: [{{agent: weather_agent, path: t.jsonl}}]")
    own, _ = next_commands(load_topology(topology), "http://h:1")

    assert plain == "rollmill collect --head http://h:1 --input tasks.jsonl --output results/first.jsonl"
    assert call == 'curl -H "Authorization: Bearer $(rollmill token)" http://h:1/v1/services'
    assert own == "rollmill collect -c topology.yaml --output results/first.jsonl"


def test_list_names_every_installed_service_with_its_kind() -> None:
    result = rollmill("list", "--json")

    kinds = {line["name"]: line["kind"] for line in json.loads(result.stdout)}
    assert (kinds["weather"], kinds["tool_loop"], kinds["scripted"]) == ("resources", "agent", "model")
    assert (kinds["head"], kinds["collector"]) == ("head", "collector")


def test_list_can_be_limited_to_one_kind() -> None:
    lines = rollmill("list", "models").stdout.splitlines()

    assert lines[0].split() == ["NAME", "KIND", "DESCRIPTION"]
    assert {line.split()[1] for line in lines[1:]} == {"model"}
    assert rollmill("list", "nonsense").exit_code == 2


def test_list_shows_the_services_of_a_topology(topology: Path) -> None:
    lines = json.loads(rollmill("list", "resources", "--json", "-c", topology).stdout)

    assert lines == [{"name": "weather", "kind": "resources", "use": "weather", "replicas": 2}]


def test_list_takes_a_topology_or_a_head_but_not_both(topology: Path) -> None:
    assert rollmill("list", "-c", topology, "--head", "http://h").exit_code == 2


def test_installed_services_are_described_by_their_readme_or_their_docstring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "listed_package" / "resources" / "echo"
    package.mkdir(parents=True)
    (package / "app.py").write_text("raise RuntimeError('not to be imported')")
    (package / "README.md").write_text(
        "# Echo\n\nRepeats what it\nhears. And more.\n\nNeeds `echoes[loud]`, not `other[thing]`; see examples/echo.yaml."
    )
    (tmp_path / "echoes-1.dist-info").mkdir()
    (tmp_path / "echoes-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: echoes\nVersion: 1\nProvides-Extra: loud\nRequires-Dist: pytest\n"
        "Requires-Dist: no-such-megaphone>=2; extra == 'loud'\n"
    )
    (tmp_path / "listed_module.py").write_text(
        "from rollmill.server import Resources\nclass Documented(Resources):\n"
        "    '''Says what it is. And more.'''\n    async def verify(self, rollout, session): return 1.0\n"
    )
    points = {
        "echo": "listed_package.resources.echo.app:create_app",
        "documented": "listed_module:Documented",
        "broken": "listed_package.no_such:create_app",
    }
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda group: EntryPoints(EntryPoint(name, value, group) for name, value in points.items()),
    )

    by_name = {line["name"]: line for line in installed()}

    told = {"name": "echo", "kind": "resources", "description": "Repeats what it hears"}
    assert by_name["echo"] == {**told, "example": "examples/echo.yaml", "install": "pip install 'echoes[loud]'"}
    told = {"name": "documented", "kind": "resources", "description": "Says what it is"}
    assert by_name["documented"] == {**told, "example": "", "install": ""}
    assert by_name["broken"]["kind"] == "unknown"
    assert str(by_name["broken"]["description"]).startswith("cannot be used: cannot import")


@pytest.mark.parametrize("command", ["status", "list"])
def test_a_head_that_does_not_answer_is_an_error_with_the_fix(command: str) -> None:
    result = rollmill(command, "--head", "http://127.0.0.1:1")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "rollmill up -c" in result.stderr or "127.0.0.1:1" in result.stderr


def test_status_says_how_to_start_a_head() -> None:
    result = rollmill("status", "--head", "http://127.0.0.1:1")

    assert "no head answers at http://127.0.0.1:1" in result.stderr
    assert "rollmill up -c" in result.stderr
    assert "Traceback" not in result.stderr


def test_down_with_nothing_running_is_no_error() -> None:
    result = rollmill("down")

    assert result.exit_code == 0
    assert "nothing is running here" in result.stderr


def test_down_stops_what_was_recorded_and_never_a_process_that_took_its_number(home: StateDir) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as child:
        own = process_ref(child.pid)
        stranger = process_ref(os.getpid())
        records = [
            ProcessRecord(
                label="a", name="a", kind="agent", pid=own.pid, started=own.started, url="http://a:1", log=""
            ),
            ProcessRecord(
                label="b", name="b", kind="model", pid=stranger.pid, started="then", url="http://b:1", log=""
            ),
        ]
        home.save(
            Deployment(
                topology="t.yaml",
                head_url="http://h:1",
                launcher_pid=stranger.pid,
                launcher_started="then",
                processes=records,
            )
        )
        home.write_settings("a", {"token": "t"})

        result = rollmill("down")

    assert result.exit_code == 0
    assert "stopped the 2 services of t.yaml" in result.stderr
    assert child.returncode == -15
    assert home.load() is None
    assert list((home.path / "settings").iterdir()) == []


def test_a_token_file_is_made_without_showing_it_and_rotated(tmp_path: Path) -> None:
    file = str(tmp_path / "volume" / "token")
    assert rollmill("token", "--file", file).exit_code == 1

    made = [rollmill("token", "--init", "--file", file) for _ in range(2)]
    first = rollmill("token", "--file", file).stdout.strip()
    rotated = rollmill("token", "--rotate", "--file", file)

    assert [(done.exit_code, done.stdout) for done in (*made, rotated)] == [(0, "")] * 3
    assert all(first not in done.stderr for done in (*made, rotated))
    new = rollmill("token", "--file", file).stdout.strip()
    assert Path(file).read_text() == f"{new}\n{first}\n"
    assert new != first


def test_a_token_of_the_environment_cannot_be_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_TOKEN", "given")

    done = rollmill("token", "--rotate")

    assert done.exit_code == 1
    assert "ROLLMILL_TOKEN_FILE or --file" in done.stderr
