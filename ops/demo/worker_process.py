"""`weir worker` as a process of its own, watched through its health and metrics pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from schemas.errors import BrokerError
from services.broker import free_port
from services.broker_settings import HOST

READY_DEADLINE_S = 120.0
STOP_DEADLINE_S = 30.0
_POLL_S = 0.1
_PAGE_TIMEOUT_S = 5.0


class WorkerProcess:
    """A running worker.

    Attributes:
        metrics_url: its page for Prometheus.
        log_file: its standard error.
    """

    def __init__(self, query: Path, bootstrap: str, group: str, folder: Path) -> None:
        port = free_port()
        self._health_url = f"http://{HOST}:{port}/healthz"
        self.metrics_url = f"http://{HOST}:{port}/metrics"
        self.log_file = folder / "worker.log"
        command = [
            *(sys.executable, "-m", "services.cli", "worker", str(query)),
            *("--bootstrap", bootstrap, "--group", group),
            *("--state-dir", str(folder / "state")),
            *("--http-port", str(port), "--http-bind", HOST),
        ]
        # The demonstration is the same everywhere, whatever the user has set for workers of their own.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C reaches the demonstration alone, which then stops the worker in its turn.
                start_new_session=True,
            )

    def await_ready(self, tick: Callable[[], None]) -> None:
        """Return when every task runs; calls `tick` meanwhile.

        Raises:
            BrokerError: the worker ended, or is not ready within READY_DEADLINE_S.
        """
        deadline = time.monotonic() + READY_DEADLINE_S
        while not self._ready():
            self.check()
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"the worker is not ready within {READY_DEADLINE_S:g} s; log: {self.log_file}"
                )
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
            BrokerError: it has; with its last words.
        """
        if (code := self._process.poll()) is not None:
            lines = self.log_file.read_text(errors="replace").splitlines()[-5:]
            raise BrokerError(
                "\n  ".join([f"the worker ended with code {code}; log: {self.log_file}", *lines])
            )

    def metrics(self) -> dict[str, float]:
        """Every sample summed over its labels; empty when the page does not answer."""
        try:
            with urllib.request.urlopen(self.metrics_url, timeout=_PAGE_TIMEOUT_S) as page:
                text = page.read().decode()
        except (OSError, urllib.error.URLError):
            return {}
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def stop(self) -> None:
        """Stop it: politely, and by force after STOP_DEADLINE_S."""
        self._process.terminate()
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
