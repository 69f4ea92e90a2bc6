"""`weir worker` in a process of its own: start, what it says of itself, what it uses, stop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ops.bench.commands import WEIR
from ops.bench.measure import peak_bytes, resident_bytes
from schemas.errors import WeirError
from services.broker import free_port

DEADLINE_SECONDS = 120.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


class WorkerProcess:
    """A worker of one query; a context manager that stops it.

    Attributes:
        pid: of its process.
    """

    def __init__(self, bootstrap: str, query: Path, folder: Path, group: str, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        self._log = folder / "worker.log"
        command = [*WEIR, "worker", str(query), "--bootstrap", bootstrap, "--group", group]
        command += ["--state-dir", str(folder / "state"), "--http-port", str(self._port)]
        command += ["--http-bind", "127.0.0.1", *options]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.pid = self._process.pid

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def metrics(self) -> Mapping[str, float]:
        """Its metrics without the prefix, summed over tasks; empty while it does not answer."""
        found: dict[str, float] = {}
        with suppress(OSError):
            address = f"http://127.0.0.1:{self._port}/metrics"
            with urllib.request.urlopen(address, timeout=5) as answer:
                text = answer.read().decode()
            for name, value in re.findall(r"^weir_(\w+?)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def wait(self, condition: Callable[[Mapping[str, float]], bool], what: str) -> Mapping[str, float]:
        """The first metrics that fulfil a condition.

        Raises:
            WeirError: it ended, or the condition is not fulfilled in time; with the end of its log.
        """
        until = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise WeirError(f"the worker ended with {self._process.returncode}:\n{self.said()}")
            found = self.metrics()
            if found and condition(found):
                return found
            time.sleep(POLL_SECONDS)
        raise WeirError(f"waited {DEADLINE_SECONDS:g} s in vain: {what}\n{self.said()}")

    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3000:]

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far."""
        return cpu_seconds(self.pid)

    def resident_bytes(self) -> int:
        """Its memory in RAM now."""
        return resident_bytes(self.pid)

    def peak_bytes(self) -> int:
        """The most memory that it has had."""
        return peak_bytes(self.pid)

    def stop(self) -> None:
        """End it politely, by force after a while."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
