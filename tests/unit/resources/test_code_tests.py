"""Programs that are right, wrong, slow, greedy or hostile. The sandbox is a real one."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.sandboxes import needs_sandbox

from rollmill.contracts.json import JsonObject, loads
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.errors import ConfigError, InputError, OverloadedError
from rollmill.server.sessions import Session
from rollmill_services.resources.code_tests.extract import last_program, same_output
from rollmill_services.resources.code_tests.sandbox import Finished, Limits, Sandbox
from rollmill_services.resources.code_tests.verifier import CodeTests, CodeTestsSettings

EXAMPLES = Path(__file__).parents[3] / "examples/data/code.jsonl"


def rollout(code: str, inputs: list[str], outputs: list[str]) -> Rollout:
    message = {"type": "message", "role": "assistant", "content": f"So:\n```python\n{code}\n```\n"}
    tests: JsonObject = {"inputs": inputs, "outputs": outputs}
    return Rollout({"verifier_metadata": {"unit_tests": tests}, "response": {"output": [message]}})


@pytest.fixture
async def verifier() -> AsyncIterator[CodeTests]:
    code_tests = CodeTests(CodeTestsSettings(cpu_seconds=1, wall_seconds=20.0, memory_mb=256, output_mb=1, file_mb=1))
    await code_tests.startup()
    yield code_tests
    await code_tests.shutdown()


async def verdict(verifier: CodeTests, code: str, given: str = "", expected: str = "ok") -> Verdict:
    return await verifier.verify(rollout(code, [given], [expected]), Session("s", {}))


async def run(code: str, **limits: int) -> Finished:
    return await Sandbox(Limits(**{"cpu_seconds": 2, "memory_mb": 256, **limits})).run(code, b"", slot=7)


async def said(code: str) -> str:
    finished = await run(code)
    assert finished.code == 0, finished.stderr
    return finished.stdout.decode().strip()


# --- verdicts ---------------------------------------------------------------------------------------------------------


@needs_sandbox
async def test_a_right_program_passes_every_test(verifier: CodeTests) -> None:
    right = await verifier.verify(rollout("print(int(input()) * 2)", ["1", "20"], ["2", "40"]), Session("s", {}))

    assert right.reward == 1.0
    assert right.details["result"] == ["passed", "passed"]
    assert right.details["tests_passed"] == 2


@needs_sandbox
async def test_it_stops_at_the_first_failed_test_and_keeps_the_expected_output_to_itself(verifier: CodeTests) -> None:
    wrong = await verifier.verify(rollout("print(input())", ["1", "2", "3"], ["1", "hidden", "3"]), Session("s", {}))

    assert wrong.reward == 0.0
    assert wrong.details["result"] == ["passed", "wrong_answer"]
    assert wrong.details["failed_test"] == {"index": 1, "status": "wrong_answer", "exit_code": 0, "stderr": ""}


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True: pass", "time_limit"),
        ("x = bytearray(10**9)", "memory_limit"),
        ("while True: print('x' * 10**6)", "output_limit"),
        ("raise SystemExit(3)", "runtime_error"),
        ("print(1 +", "runtime_error"),
        ("import os; os.kill(os.getpid(), 11)", "runtime_error"),
        ("import os; os._exit(0)", "wrong_answer"),
        ("print('ok', file=__import__('sys').stderr)", "wrong_answer"),
        ("print('\\ud800')", "runtime_error"),
    ],
)
async def test_a_program_that_misbehaves_gets_no_reward(verifier: CodeTests, code: str, status: str) -> None:
    wrong = await verdict(verifier, code)

    assert wrong.reward == 0.0
    assert wrong.details["result"] == [status]


@needs_sandbox
async def test_a_program_that_sleeps_ends_by_the_clock() -> None:
    begun = time.monotonic()
    finished = await Sandbox(Limits(wall_seconds=1.0)).run("import time; time.sleep(60)", b"", slot=3)

    assert finished.out_of_time
    assert time.monotonic() - begun < 20


@needs_sandbox
async def test_input_that_is_not_read_and_input_of_a_megabyte_are_fine(verifier: CodeTests) -> None:
    assert (await verdict(verifier, "print('ok')", given="x" * 1_000_000)).reward == 1.0
    assert (await verdict(verifier, "print(len(input()))", given="x" * 1_000_000, expected="1000000")).reward == 1.0


@needs_sandbox
async def test_threads_are_allowed(verifier: CodeTests) -> None:
    code = "import threading\nt = threading.Thread(target=lambda: print('ok'))\nt.start(); t.join()"

    assert (await verdict(verifier, code)).reward == 1.0


@pytest.mark.parametrize("text", ["", "no program", "```js\nprint(1)\n```", "x" * 1_000_000, "```" * 100_000, "\ud800"])
async def test_an_answer_without_a_program_gets_no_reward(text: str) -> None:
    row = {
        "unit_tests": {"inputs": [""], "outputs": ["ok"]},
        "response": {"output": [{"type": "message", "role": "assistant", "content": text}]},
    }

    wrong = await CodeTests().verify(Rollout(row), Session("s", {}))

    assert wrong.reward == 0.0
    assert wrong.details["extracted_model_code"] is None


# --- attempts to get out ----------------------------------------------------------------------------------------------


@needs_sandbox
async def test_there_is_no_network() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        told = await said(
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 2); print('out')\n"
            "except OSError as error: print(type(error).__name__)"
        )

    assert told == "ConnectionRefusedError"


@needs_sandbox
async def test_files_outside_can_be_neither_read_nor_written(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("planted")
    for path in (secret, Path(__file__), Path("/etc/passwd"), Path("/root"), Path("/home")):
        assert await said(f"import os; print(os.path.exists({str(path)!r}))") in ("False", str(path == Path("/root")))
    told = await said(
        f"import os\ntry: os.symlink({str(secret)!r}, '/tmp/s'); print(open('/tmp/s').read())\nexcept OSError: print('no')"
    )

    assert told == "no"
    for place in ("/usr/bin/x", "/x", "/launcher.py", "/program.py", "/dev/x", "/proc/sys/kernel/hostname"):
        assert await said(f"try: open({place!r}, 'w'); print('written')\nexcept OSError: print('no')") == "no"


@needs_sandbox
async def test_the_environment_and_other_processes_are_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_TOKEN", "planted-token")

    told = await said(
        "import os\nprint(dict(os.environ))\n"
        "for name in os.listdir('/proc'):\n"
        "    if name.isdigit():\n"
        "        for file in ('cmdline', 'environ'):\n"
        "            try: print(open(f'/proc/{name}/{file}').read())\n"
        "            except OSError: pass\n"
    )

    assert "planted-token" not in told
    assert str(os.getpid()) not in await said("import os; print([n for n in os.listdir('/proc') if n.isdigit()])")


@needs_sandbox
async def test_a_program_is_not_root_and_cannot_become_it() -> None:
    told = await said(
        "import os\nprint(os.getuid() != 0)\n"
        "try: os.setuid(0); print('root')\nexcept OSError: print('refused')\n"
        "print('NoNewPrivs:\\t1' in open('/proc/self/status').read(), 'CapEff:\\t0000000000000000' in open('/proc/self/status').read())"
    )

    assert told.split() == ["True", "refused", "True", "True"]


@needs_sandbox
async def test_a_fork_bomb_stays_small_and_nothing_of_it_is_left() -> None:
    finished = await run("import os\nwhile True: os.fork()", processes=8, cpu_seconds=1, file_mb=13)

    assert finished.code != 0
    assert left_over() == []


@needs_sandbox
async def test_a_daemon_that_a_program_leaves_behind_ends_with_it() -> None:
    begun = time.monotonic()
    finished = await run(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('ok')", file_mb=13
    )

    assert finished.stdout == b"ok\n"
    assert time.monotonic() - begun < 20
    assert left_over() == []


def left_over() -> list[bytes]:
    """Return the command lines of programs with this file limit, which no other test uses, that still run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = entry.read_bytes()
            if b"/launcher.py" in line and b'"file_mb": 13,' in line:
                found.append(line)
    return found


@needs_sandbox
async def test_what_a_program_may_write_is_bounded() -> None:
    code = "import os\ntry:\n    for n in range(9): open(f'{place}/{{n}}', 'wb').write(bytes(900_000))\n    print('all')\nexcept OSError: print('full')"
    for place in ("/tmp", "/dev/shm"):
        finished = await run(code.format(place=place).replace("{{n}}", "{n}"), file_mb=1)
        assert finished.stdout == b"full\n", finished.stderr


@needs_sandbox
async def test_the_next_program_finds_nothing_of_the_last() -> None:
    await said("open('/tmp/note', 'w').write('expected outputs'); print('ok')")

    assert await said("import os; print(os.listdir('/tmp'), os.listdir('/dev/shm'))") == "[] []"


@needs_sandbox
async def test_the_comparison_cannot_be_patched_from_inside(verifier: CodeTests) -> None:
    code = (
        "import builtins, sys, gc\n"
        "for module in list(sys.modules.values()):\n"
        "    for name in ('same_output', 'verify', 'limit', 'main'):\n"
        "        if hasattr(module, name): setattr(module, name, lambda *a: True)\n"
        "str.__eq__ if False else None\n"
        "sys.exit(0)"
    )

    assert (await verdict(verifier, code)).reward == 0.0
    assert (await verdict(verifier, "print('not ok')")).reward == 0.0


@needs_sandbox
async def test_inputs_and_outputs_of_other_tests_are_not_there_to_be_read(verifier: CodeTests) -> None:
    code = (
        "import os, sys\nfound = ''\n"
        "for base in ('/tmp', '/dev/shm', '/'):\n"
        "    for name in os.listdir(base):\n"
        "        try: found += open(os.path.join(base, name)).read()\n"
        "        except OSError: pass\n"
        "for fd in range(3, 64):\n"
        "    try: found += os.read(fd, 65536).decode(errors='replace')\n"
        "    except OSError: pass\n"
        "print('leaked' if 'planted-' + 'output' in found else 'clean')"
    )
    looked = await verifier.verify(rollout(code, ["", ""], ["clean", "planted-output"]), Session("s", {}))

    assert looked.details["result"] == ["passed", "wrong_answer"]


# --- limits, settings and rows ----------------------------------------------------------------------------------------


@needs_sandbox
async def test_too_many_verdicts_at_once_are_asked_to_come_again() -> None:
    verifier = CodeTests(CodeTestsSettings(sandboxes=1, waiting=1, wall_seconds=20.0))
    slow = rollout("import time; time.sleep(0.5); print('ok')", [""], ["ok"])

    results = await asyncio.gather(
        *(verifier.verify(slow, Session(str(n), {})) for n in range(4)), return_exceptions=True
    )

    assert [isinstance(result, OverloadedError) for result in results] == [False, False, True, True]
    assert (await verifier.verify(slow, Session("later", {}))).reward == 1.0


async def test_without_bubblewrap_it_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="apt-get install bubblewrap"):
        await CodeTests().startup()


async def test_where_no_namespace_can_be_made_it_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with pytest.raises(ConfigError, match="No permissions to create new namespace"):
        await CodeTests().startup()


async def test_the_walls_can_be_waived_on_purpose() -> None:
    verifier = CodeTests(CodeTestsSettings(allow_unsandboxed=True, memory_mb=1024))
    await verifier.startup()

    assert (await verdict(verifier, "print('ok')")).reward == 1.0


@pytest.mark.parametrize(
    ("tests", "pointer"),
    [
        ({}, "inputs"),
        ({"inputs": [], "outputs": []}, "inputs"),
        ({"inputs": ["1"], "outputs": [2]}, "outputs"),
        ({"inputs": ["1"], "outputs": ["1", "2"]}, "outputs"),
        ({"inputs": [""] * 1001, "outputs": [""] * 1001}, "inputs"),
    ],
)
async def test_a_task_that_cannot_be_graded_is_refused_before_the_model_is_asked(
    tests: JsonObject, pointer: str
) -> None:
    with pytest.raises(InputError, match=pointer):
        await CodeTests().seed_session(Session("s", {}), {"unit_tests": tests})


async def test_a_row_without_tests_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="unit_tests"):
        await CodeTests().seed_session(Session("s", {}), {})


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```\n```python\nb\n```", "b\n"),
        ("```py\na\n```\n```text\nb\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```python\nnever closed", None),
        ("  ```Python title=x\n  a\n  ```", "  a\n"),
    ],
)
def test_the_last_python_block_is_the_program(text: str, program: str | None) -> None:
    assert last_program(text) == program


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1\n2\n", "1\n2", True),
        ("1 \n 2", "1\n2\n\n", True),
        ("1\n\n2", "1\n2", False),
        ("1 2", "1\n2", False),
        ("1.0", "1", True),
        ("1e3  2", "1000 2.0", True),
        ("nan", "NaN", False),
        ("yes", "Yes", False),
        ("", "", True),
        ("1" * 500, "1" * 500 + ".0", False),
    ],
)
def test_outputs_are_compared_by_line(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


@needs_sandbox
async def test_the_example_tasks_tell_right_from_wrong_programs() -> None:
    verifier = CodeTests(CodeTestsSettings(cpu_seconds=2))
    for line in EXAMPLES.read_bytes().splitlines():
        task = loads(line)
        for kind, reward in (("right", 1.0), ("wrong", 0.0)):
            for text in task["scripted_answers"][kind]:
                response = {"output": [{"type": "message", "role": "assistant", "content": text}]}
                graded = await verifier.verify(Rollout({**task, "response": response}), Session("s", {}))
                assert graded.reward == reward, (text, graded.details)
