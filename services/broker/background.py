"""Servers that run on after the process that started them has ended, each known by its data folder.

A process counts as the server of a folder only if its command line carries the folder's mark, so that a process id left
behind by a crash and taken over by another program is not mistaken for it.

Rejected: a free port chosen by the kernel. Ours is below the range that the kernel gives to outgoing connections: a
client that keeps dialling a stopped server inside that range can connect to itself and hold the port against the
server's return.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import BrokerError
from services.broker.settings import HOST

PORTS = range(20000, 32000)
"""Where free ports are chosen from."""

POLL_S = 0.05

# Servers that this process started: asking them reaps them, so that an ended one does not stay as a zombie.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A kind of server: how the one of a data folder is started, found, waited for and ended.

    What is known of a running one (`pid`, `port`, `version` and more) is in its folder's state file, which a clean stop
    removes.

    Attributes:
        name: of messages, of the state file (`<name>.json`) and of the mark.
        log: name of the log file that messages point at.
        output: name of the file that gets what the process prints.
    """

    name: str
    log: str
    output: str

    def mark(self, data_dir: Path) -> str:
        """The argument that marks a command line as that of the server of `data_dir`."""
        return f"-Dweir.{self.name}.data={data_dir}"

    def find(self, data_dir: Path) -> dict[str, Any] | None:
        """What is known of the running server of a folder; None if none runs. It may still be starting."""
        try:
            known = dict(json.loads(self._state(data_dir).read_text()))
            known |= {"pid": int(known["pid"]), "port": int(known["port"]), "version": str(known["version"])}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return known if is_alive(known["pid"], self.mark(data_dir)) else None

    def start(
        self,
        data_dir: Path,
        command: Sequence[str],
        known: Mapping[str, Any],
        answers: Callable[[], bool],
        limit: float,
    ) -> int:
        """Start the server of a folder and wait until it answers.

        Args:
            command: contains the mark.
            known: goes to the state file, with the process id; contains the port and the version.
            answers: whether the server answers its clients.
            limit: seconds that it has to answer.

        Returns: the process id.

        Raises:
            BrokerError: it ended or stayed silent; it does not run any more.
        """
        log = data_dir / self.log
        begin = log.stat().st_size if log.exists() and self.log != self.output else 0
        process = start(command, data_dir, data_dir / self.output, {"MALLOC_ARENA_MAX": "2"})
        known = {"pid": process.pid, **known}
        try:
            write_private(self._state(data_dir), json.dumps(known) + "\n")
            self.wait(data_dir, known, answers, limit, begin)
        except BaseException:
            process.kill()
            process.wait()
            self._state(data_dir).unlink(missing_ok=True)
            raise
        return process.pid

    def wait(
        self,
        data_dir: Path,
        known: Mapping[str, Any],
        answers: Callable[[], bool],
        limit: float,
        begin: int = 0,
    ) -> None:
        """Return when a server answers.

        Args:
            begin: from which byte on the log is of this start.

        Raises:
            BrokerError: the server ended or `limit` seconds have passed; with its last log lines.
        """
        deadline = time.monotonic() + limit
        logs = {data_dir / self.log: begin} | ({data_dir / self.output: 0} if self.output != self.log else {})
        while not listens(known["port"]) or not answers():
            if not is_alive(known["pid"], self.mark(data_dir)):
                raise BrokerError(f"the {self.name} ended while starting; {last_words(logs)}")
            if time.monotonic() > deadline:
                raise BrokerError(f"no answer within {limit:g} s; {last_words(logs)}")
            time.sleep(POLL_S)

    def end(self, data_dir: Path, how: signal.Signals, limit: float) -> bool:
        """End the server of a folder by a signal, and by SIGKILL after `limit` seconds.

        SIGKILL leaves the state file behind, as a crash does.

        Returns: whether there was one to end.
        """
        if not data_dir.is_dir():
            return False
        with locked(data_dir):
            known = self.find(data_dir)
            if known is not None:
                end(known["pid"], self.mark(data_dir), how, limit)
            if how is not signal.SIGKILL:
                self._state(data_dir).unlink(missing_ok=True)
        return known is not None

    def _state(self, data_dir: Path) -> Path:
        return data_dir / f"{self.name}.json"


def start(
    command: Sequence[str], folder: Path, output: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own.

    Args:
        output: the file that gets what it prints.
        environment: variables beside those of this process.
    """
    with output.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    _children[process.pid] = process
    return process


def is_alive(pid: int, mark: str) -> bool:
    """Whether a process runs with `mark` among its arguments. A zombie process does not."""
    if (child := _children.get(pid)) is not None:
        if child.poll() is None:
            return True  # the command line is no evidence: it is empty for an instant while the process starts
        del _children[pid]
    if sys.platform == "linux":
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return os.fsencode(mark) in arguments
    shown = subprocess.run(["ps", "-ww", "-p", str(pid), "-o", "command="], capture_output=True, check=False)
    return os.fsencode(mark) in shown.stdout


def end(pid: int, mark: str, how: signal.Signals, deadline_s: float) -> None:
    """End a process by a signal, and by SIGKILL after `deadline_s` seconds.

    Raises:
        BrokerError: it does not end.
    """
    for signal_ in (how, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_)
        deadline = time.monotonic() + deadline_s
        while is_alive(pid, mark):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        else:
            return
    raise BrokerError(f"process {pid} does not end")


def free_port(*taken: int) -> int:
    """A loopback port that no server listens on, from below the kernel's range for outgoing connections.

    Args:
        taken: ports that are about to be listened on, and so are none.
    """
    choice = random.SystemRandom()
    free = [port for port in PORTS if port not in taken]
    for port in choice.sample(free, min(len(free), 200)):
        if port_error(port) is None:
            return port
    raise BrokerError(f"no free port found in {PORTS.start}..{PORTS.stop - 1} on the loopback interface")


def port_error(port: int) -> OSError | None:
    """Why no server could listen on `port`; None if one could."""
    with socket.socket() as probe:
        # As the JVM does: connections of a server that has just ended do not hold its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error
    return None


def check_port(port: int) -> None:
    """Raise BrokerError, which says what to do, if no server could listen on `port`."""
    if error := port_error(port):
        raise BrokerError(
            f"port {port} on {HOST} cannot be used: {error}; give another with --port, or 0 for a free one"
        )


def listens(port: int) -> bool:
    """Whether a server accepts connections at `port`."""
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One start or stop at a time per data folder; a second one waits for the first."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; only its owner can read it, since it may hold a password."""
    fresh = path.with_suffix(".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text)
    fresh.replace(path)


def telling(lines: list[str]) -> list[str]:
    """The last few lines of a Java program's output that name errors; its last lines if none does."""
    return ([line for line in lines if re.search(r"ERROR|FATAL|Exception|Error:", line)] or lines)[-5:]


def last_words(logs: Mapping[Path, int]) -> str:
    """The log lines that show why a server ended, and the path of the first log.

    Args:
        logs: from which byte on each is of this start.
    """
    lines: list[str] = []
    for path, begin in logs.items():
        if path.exists():
            with path.open("rb") as log:
                log.seek(begin if begin <= path.stat().st_size else 0)
                lines += log.read().decode(errors="replace").splitlines()
    return "\n  ".join([f"log: {next(iter(logs))}", *telling(lines)])
