import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rollmill.errors import ConfigError, ConflictError
from rollmill.local.processes import process_ref
from rollmill.local.state import Deployment, ProcessRecord, StateDir


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "home")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def deployment(*processes: ProcessRecord) -> Deployment:
    return Deployment(
        topology="t.yaml", head_url="http://127.0.0.1:1", launcher_pid=1, launcher_started="", processes=[*processes]
    )


def record(kind: str, pid: int = 0, started: str = "", label: str = "x") -> ProcessRecord:
    return ProcessRecord.model_validate(
        {"label": label, "name": "x", "kind": kind, "pid": pid, "started": started, "url": "http://h:1", "log": "x.log"}
    )


def test_the_folder_is_named_by_the_environment_or_lies_in_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert StateDir.default({"ROLLMILL_HOME": "/somewhere"}).path == Path("/somewhere")
    assert StateDir.default({}).path == tmp_path / ".rollmill"
    monkeypatch.setenv("ROLLMILL_HOME", "named")
    assert StateDir.default().path == tmp_path / "named"


def test_asking_for_a_token_makes_one_that_stays_the_same_and_is_private(state: StateDir) -> None:
    assert state.existing_token() is None

    token = state.token()

    assert len(token) >= 40
    assert state.token() == token == state.existing_token()
    assert mode(state.path) == 0o700
    assert mode(state.path / "token") == 0o600
    assert (state.path / ".gitignore").read_text() == "*\n"
    assert sorted(p.name for p in state.path.iterdir()) == [".gitignore", "token"]


def test_two_folders_have_different_tokens(tmp_path: Path) -> None:
    assert StateDir(tmp_path / "a").token() != StateDir(tmp_path / "b").token()


def test_everybody_who_asks_at_once_gets_the_same_token(state: StateDir) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(state.token())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 16
    assert len(set(found)) == 1


@pytest.mark.parametrize("bits", [0o644, 0o640, 0o604, 0o660])
def test_a_token_that_others_can_read_is_refused_with_the_fix(state: StateDir, bits: int) -> None:
    state.token()
    (state.path / "token").chmod(bits)

    with pytest.raises(ConfigError, match=f"chmod 600 {state.path / 'token'}"):
        state.token()


@pytest.mark.parametrize("content", ["", "\n", "two words", "büro"])
def test_a_file_without_a_token_in_it_is_refused(state: StateDir, content: str) -> None:
    state.token()
    (state.path / "token").write_text(content)

    with pytest.raises(ConfigError, match="holds no token"):
        state.token()


def test_settings_files_are_private_and_can_be_written_again_and_removed(state: StateDir) -> None:
    state.write_settings("weather@1", {"token": "old"})
    path = state.write_settings("weather@1", {"token": "new"})

    assert json.loads(path.read_bytes()) == {"token": "new"}
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700

    state.remove_settings()
    assert not path.exists()


def test_log_files_lie_in_a_private_folder(state: StateDir) -> None:
    path = state.log_path("weather")

    assert path.name == "weather.log"
    assert mode(path.parent) == 0o700


def test_what_was_started_is_remembered_until_it_is_forgotten(state: StateDir) -> None:
    assert state.load() is None
    started = deployment(record("head", pid=7, started="x"))

    state.save(deployment())
    state.save(started)

    assert state.load() == started
    assert mode(state.path / "services.json") == 0o600
    state.forget()
    state.forget()
    assert state.load() is None


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"topology": 3}'])
def test_a_record_that_cannot_be_understood_is_an_error_with_the_fix(state: StateDir, content: str) -> None:
    state.token()
    (state.path / "services.json").write_text(content)

    with pytest.raises(ConfigError, match="remove it"):
        state.load()


def test_a_deployment_lives_as_long_as_one_of_its_processes_does() -> None:
    own = process_ref(os.getpid())
    gone, alive = record("model", 2**22 + 1, "never"), record("agent", own.pid, own.started)

    assert deployment(gone, alive).is_alive()
    assert not deployment(gone).is_alive()
    assert not deployment().is_alive()


def test_callers_stop_before_those_they_call_and_the_head_last() -> None:
    kinds = ["head", "collector", "profiler", "model", "resources", "agent", "agent"]
    records = [record(kind, pid=number) for number, kind in enumerate(kinds, start=1)]

    stages = deployment(*records).stop_order()

    by_pid = dict(enumerate(kinds, start=1))
    order = [[by_pid[ref.pid] for ref in stage] for stage in stages]
    assert order == [["collector"], ["profiler"], ["agent", "agent"], ["resources"], ["model"], ["head"]]


def test_only_one_process_at_a_time_starts_a_deployment_in_a_folder(state: StateDir) -> None:
    with state.locked():
        code = (
            "import sys; from pathlib import Path; from rollmill.local.state import StateDir\n"
            "with StateDir(Path(sys.argv[1])).locked(): pass"
        )
        other = subprocess.run([sys.executable, "-c", code, state.path], capture_output=True, text=True, check=False)
        with pytest.raises(ConflictError, match="at work"), state.locked():
            pytest.fail("locked twice")

    assert "another `rollmill up` is at work" in other.stderr
    with state.locked():
        pass
