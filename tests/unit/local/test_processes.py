import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from rollmill.local import processes
from rollmill.local.processes import ProcessRef, process_ref, start_mark, stop_in_stages

SLEEPER = "import time; print(flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
NOBODY = 2**22 + 1

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str) -> "subprocess.Popen[bytes]":
        child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child

    yield run
    for child in started:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_a_process_is_told_from_another_by_when_it_started(start: Start) -> None:
    child = start(SLEEPER)

    assert start_mark(child.pid) == start_mark(child.pid) != ""
    assert process_ref(child.pid).is_running()
    assert process_ref(os.getpid()).is_running()
    assert start_mark(NOBODY) == ""


def test_a_process_that_ended_does_not_run_even_while_its_parent_has_not_noticed(start: Start) -> None:
    child = start(SLEEPER)
    ref = process_ref(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert not ref.is_running()


def test_a_signal_never_reaches_a_later_process_with_the_same_number(start: Start) -> None:
    child = start(SLEEPER)

    ProcessRef(child.pid, "an earlier process").send(signal.SIGKILL)
    ProcessRef(child.pid, "").send(signal.SIGKILL)
    ProcessRef(NOBODY, "x").send(signal.SIGKILL)

    assert child.poll() is None


def test_a_process_that_ends_just_before_the_signal_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "start_mark", lambda pid: "same")

    ProcessRef(NOBODY, "same").send(signal.SIGTERM)


async def test_a_stage_starts_to_stop_only_when_the_one_before_is_gone(start: Start) -> None:
    note = "import signal, sys, time\ndef end(*_): time.sleep({}); sys.exit()\nsignal.signal(signal.SIGTERM, end)\n"
    slow, quick = start(note.format(0.3) + SLEEPER), start(SLEEPER)

    work = asyncio.create_task(
        stop_in_stages([[process_ref(slow.pid)], [], [process_ref(quick.pid)]], grace_seconds=20)
    )
    while slow.poll() is None:
        assert quick.poll() is None
        await asyncio.sleep(0.01)

    assert await work == []
    assert quick.wait() == -signal.SIGTERM


async def test_who_does_not_stop_in_time_is_killed_and_named(start: Start) -> None:
    stubborn, willing = start(STUBBORN), start(SLEEPER)
    refs = [process_ref(stubborn.pid), process_ref(willing.pid)]

    killed = await stop_in_stages([refs], grace_seconds=0.3)

    assert killed == refs[:1]
    assert stubborn.wait() == -signal.SIGKILL


async def test_hurry_ends_the_grace_at_once(start: Start) -> None:
    stubborn = start(STUBBORN)
    ref = process_ref(stubborn.pid)
    hurry = asyncio.Event()
    hurry.set()

    killed = await stop_in_stages([[ref]], grace_seconds=1000, hurry=hurry)

    assert killed == [ref]
    assert stubborn.wait() == -signal.SIGKILL


def test_systems_without_proc_ask_ps(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    child = start(SLEEPER)
    monkeypatch.setattr(sys, "platform", "darwin")

    mark = start_mark(child.pid)

    assert mark == start_mark(child.pid)
    assert ":" in mark
    assert start_mark(NOBODY) == ""
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_mark(child.pid) == ""
