"""Runs `weir worker` in a process of its own: starts it, reads its log and metrics, measures it, stops it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from ops.bench.measuring.measure import peak_bytes, resident_bytes
from schemas.errors import BrokerError
from services.broker.background import free_port
from services.broker.settings import HOST

DEADLINE_S = 120.0
STOP_S = 30.0
_POLL_S = 0.05
_PAGE_TIMEOUT_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")


class WorkerProcess:
    """A worker of one query; a context manager that stops it.

    Attributes:
        pid: the process id.
        metrics_url: its page for Prometheus.
        log_file: its standard error.
    """

    def __init__(self, bootstrap: str, query: Path, folder: Path, group: str, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self._health_url = f"http://{HOST}:{port}/healthz"
        self.metrics_url = f"http://{HOST}:{port}/metrics"
        self.log_file = folder / "worker.log"
        command = [
            *(sys.executable, "-m", "services.cli", "worker", str(query)),
            *("--bootstrap", bootstrap, "--group", group),
            *("--state-dir", str(folder / "state")),
            *("--http-port", str(port), "--http-bind", HOST),
            *options,
        ]
        # The same options everywhere, whatever the user has set for other workers.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C reaches only the process that started this worker, and that process then stops the worker.
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_ready(self, tick: Callable[[], None] = lambda: None) -> None:
        """Return when every task runs; calls `tick` meanwhile.

        Raises:
            BrokerError: the worker ended, or is not ready in time.
        """
        self._wait(self._ready, "its tasks run", tick)

    def wait(self, condition: Callable[[Mapping[str, float]], bool], what: str) -> Mapping[str, float]:
        """The first metrics that fulfil a condition.

        Raises:
            BrokerError: the worker ended, or the condition is not fulfilled in time.
        """
        found: dict[str, float] = {}

        def fulfilled() -> bool:
            found.clear()
            found.update(self.metrics())
            return bool(found) and condition(found)

        self._wait(fulfilled, what, lambda: None)
        return found

    def _wait(self, condition: Callable[[], bool], what: str, tick: Callable[[], None]) -> None:
        until = time.monotonic() + DEADLINE_S
        while not condition():
            self.check()
            if time.monotonic() > until:
                raise BrokerError(f"waited {DEADLINE_S:g} s for the worker in vain ({what}); {self._last_words()}")
            tick()
            time.sleep(_POLL_S)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(self._health_url, timeout=_PAGE_TIMEOUT_S) as page:
                tasks = json.load(page)["tasks"]
        except (OSError, ValueError):
            return False
        return bool(tasks) and all(task["state"] == "running" for task in tasks)

    def check(self) -> None:
        """Raise if the worker has ended.

        Raises:
            BrokerError: it has; the message has the last lines of its log.
        """
        if (code := self._process.poll()) is not None:
            raise BrokerError(f"the worker ended with code {code}; {self._last_words()}")

    def _last_words(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines()[-5:]
        return "\n  ".join([f"log: {self.log_file}", *lines])

    def metrics(self) -> dict[str, float]:
        """Its metrics without the prefix `weir_`, summed over their labels; empty while it does not answer."""
        try:
            with urllib.request.urlopen(self.metrics_url, timeout=_PAGE_TIMEOUT_S) as page:
                text = page.read().decode()
        except OSError:
            return {}
        found: dict[str, float] = {}
        for name, value in re.findall(r"^weir_(\w+?)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far."""
        return cpu_seconds(self.pid)

    def resident_bytes(self) -> int:
        """Its memory in RAM now."""
        return resident_bytes(self.pid)

    def peak_bytes(self) -> int:
        """The most memory that it has had."""
        return peak_bytes(self.pid)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it with a signal, and kill it after STOP_S."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
