"""A place that a program cannot leave: bubblewrap with namespaces of its own, no network, and a read-only root.

Each program is one process tree in a process namespace, which ends, with all it started, when the program ends or its
time is up. It sees the system's programs and libraries, an empty `/tmp`, and nothing else: no home, no environment, no
files of the service, no other process. Started by root, it runs as a user of its own, one for each program at work, so
that the limit of processes counts only its own; started by another user, in a user namespace.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rollmill.errors import ConfigError, NotReadyError

LAUNCHER = Path(__file__).with_name("launcher.py")
FIRST_UID = 61_000
"""Users of the programs, when the service runs as root: not assigned by Debian (61,000 to 65,533 are unused)."""
LONGEST_STDERR = 4096
"""Bytes kept of what a program writes to its standard error: the last ones."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_MEGABYTE = 1024 * 1024
_CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use."""

    cpu_seconds: int = 5
    wall_seconds: float = 15.0
    memory_mb: int = 512
    """Address space of each process."""
    processes: int = 8
    """Processes and threads at once."""
    file_mb: int = 16
    """Size of a file, and of all of `/tmp` together, and of all of `/dev/shm`."""
    output_bytes: int = 4 * _MEGABYTE
    """What it may print; more ends it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended."""

    code: int
    """Exit status; negative for a signal."""
    stdout: bytes
    stderr: bytes
    seconds: float
    """Wall time, the start of the sandbox included."""
    out_of_time: bool = False
    too_much_output: bool = False


class SandboxError(NotReadyError):
    """The sandbox itself failed, so nothing is known about the program."""

    slug, title = "sandbox-failed", "Sandbox failed"


class Sandbox:
    """Runs programs, each in a new sandbox.

    Args:
        limits: of each program.
        python: the interpreter that runs them, with the libraries beside it; by default that of the service, without
            the packages of its virtual environment.
        isolated: without, programs only have the limits, and can read and send what the service can.
    """

    def __init__(self, limits: Limits, *, python: str = "", isolated: bool = True) -> None:
        self._limits = limits
        own = os.path.join(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
        self._python = Path(python or own).resolve()  # its prefix is what the sandbox shows
        self._isolated = isolated
        self._bubblewrap = shutil.which("bwrap") or ""

    async def check(self) -> None:
        """Run a program that tries to get out.

        Raises:
            ConfigError: there is no isolation to be had here; the message says what is missing and what to do.
        """
        if not self._isolated:
            return
        if not self._bubblewrap:
            raise ConfigError(f"bubblewrap is not installed (apt-get install bubblewrap). {_ELSE}")
        try:
            finished = await self.run(_PROBE, b"", slot=0)
        except SandboxError as error:
            raise ConfigError(f"no sandbox can be made here: {error.detail}. {_ELSE}") from None
        if finished.code or finished.stdout.strip() != b"inside":
            told = finished.stdout.decode(errors="replace").strip() or finished.stderr.decode(errors="replace")[-500:]
            raise ConfigError(f"the sandbox is not tight: {told}. {_ELSE}")

    async def run(self, program: str, stdin: bytes, *, slot: int) -> Finished:
        """Run a program to its end, or to that of its limits.

        Args:
            program: source text.
            stdin: all of its standard input.
            slot: number of the program among those at work; no two at once may have the same.

        Raises:
            SandboxError: the sandbox could not be made.
        """
        ready_read, ready_write = os.pipe()
        source = _in_memory(program)
        try:
            process = await self._start(source, ready_write, slot)
        except OSError as error:
            os.close(ready_read)
            raise SandboxError(f"bubblewrap did not start: {error.strerror}", retry_after=5.0) from None
        finally:
            os.close(source)
            os.close(ready_write)
        try:
            return await self._finish(process, stdin, ready_read)
        finally:
            os.close(ready_read)
            await _end(process)

    async def _start(self, source: int, ready: int, slot: int) -> Process:
        uid = FIRST_UID + slot if self._isolated and os.geteuid() == 0 else 0
        limits = {
            "cpu_seconds": self._limits.cpu_seconds,
            "memory_mb": self._limits.memory_mb,
            "processes": self._limits.processes if self._isolated else 4096,  # counted with all of the user's
            "file_mb": self._limits.file_mb,
            "uid": uid,
            "ready_fd": ready,
        }
        launcher = "/launcher.py" if self._isolated else str(LAUNCHER)
        program = "/program.py" if self._isolated else f"/proc/self/fd/{source}"
        command = [str(self._python), "-I", launcher, json.dumps(limits), program]
        if self._isolated:
            command = [*self._walls(source, as_root=bool(uid)), "--", *command]
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            pass_fds=(source, ready),
            start_new_session=True,
        )

    def _walls(self, source: int, *, as_root: bool) -> list[str]:
        walls = [self._bubblewrap, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
        walls += ["--unshare-cgroup-try"]
        walls += ["--die-with-parent", "--new-session", "--hostname", "sandbox", "--cap-drop", "ALL"]
        walls += (
            ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            if as_root
            else ["--unshare-user", "--disable-userns"]
        )
        for path in map(Path, _SYSTEM):
            if path.is_symlink():
                walls += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                walls += ["--ro-bind", str(path), str(path)]
        walls += self._interpreter()
        walls += ["--proc", "/proc", "--dev", "/dev"]
        for writable in ("/dev/shm", "/tmp"):
            walls += ["--size", str(self._limits.file_mb * _MEGABYTE), "--perms", "1777", "--tmpfs", writable]
        walls += ["--ro-bind", str(LAUNCHER), "/launcher.py", "--perms", "0444", "--ro-bind-data", str(source)]
        return [*walls, "/program.py", "--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/tmp"]

    def _interpreter(self) -> list[str]:
        prefix = self._python.parent.parent
        if prefix.is_relative_to("/usr"):
            return []
        parents = [str(parent) for parent in reversed(prefix.parents) if parent != Path("/")]
        readable = [argument for parent in parents for argument in ("--perms", "0755", "--dir", parent)]
        return [*readable, "--ro-bind", str(prefix), str(prefix)]

    async def _finish(self, process: Process, stdin: bytes, ready: int) -> Finished:
        begun = time.monotonic()
        taken = _Taken(self._limits.output_bytes)
        out_of_time = False
        try:
            async with asyncio.timeout(self._limits.wall_seconds):
                async with asyncio.TaskGroup() as group:
                    group.create_task(_feed(process, stdin))
                    group.create_task(taken.read_stdout(process))
                    group.create_task(taken.read_stderr(process))
                await process.wait()
        except TimeoutError:
            out_of_time = True
        seconds = time.monotonic() - begun
        os.set_blocking(ready, False)
        started = b""
        with suppress(BlockingIOError):
            started = os.read(ready, 1)
        if not started:
            told = bytes(taken.stderr).decode(errors="replace").strip().removeprefix("bwrap: ")
            raise SandboxError(told[-500:] or "the program was not started in time", retry_after=5.0)
        code = process.returncode if process.returncode is not None else -signal.SIGKILL
        code = 128 - code if code > 128 else code  # bubblewrap tells a signal as 128 + its number
        slow = out_of_time or code in (-signal.SIGXCPU, -signal.SIGKILL)
        return Finished(code, bytes(taken.stdout), bytes(taken.stderr), seconds, slow and not taken.full, taken.full)


class _Taken:
    """What a program wrote, as far as it is kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.stdout, self.stderr = bytearray(), bytearray()
        self.full = False

    async def read_stdout(self, process: Process) -> None:
        assert process.stdout is not None
        while chunk := await process.stdout.read(_CHUNK):
            self.stdout += chunk[: self._most - len(self.stdout)]
            if len(self.stdout) >= self._most:
                self.full = True
                _kill(process)
                return

    async def read_stderr(self, process: Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(_CHUNK):
            self.stderr = (self.stderr + chunk)[-LONGEST_STDERR:]


async def _feed(process: Process, stdin: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # a program need not read all of its input
        process.stdin.write(stdin)
        await process.stdin.drain()
    process.stdin.close()


def _kill(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the first process of the sandbox dies with bubblewrap


async def _end(process: Process) -> None:
    _kill(process)
    await process.communicate()  # what is left in the pipes, so that they are closed


def _in_memory(program: str) -> int:
    """Return a descriptor of a file that has no name and holds the program."""
    descriptor = os.memfd_create("program")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(program.encode(errors="replace"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


_ELSE = "Run the service where user namespaces are allowed, or set allow_unsandboxed if you trust every answer"
_PROBE = """
import os, socket
def closed(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False
if os.getuid() == 0:
    print("a program would run as root")
elif not closed(lambda: socket.create_connection(("1.1.1.1", 80), timeout=1)):
    print("a program can use the network")
elif not closed(lambda: open("/usr/rollmill-was-here", "w")):
    print("a program can write to the system")
elif len([name for name in os.listdir("/proc") if name.isdigit()]) > 3:
    print("a program can see other processes")
else:
    print("inside")
"""
