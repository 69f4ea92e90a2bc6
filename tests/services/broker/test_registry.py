"""`weir registry`: start, status, stop, and what stands in their way."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.errors import BrokerError
from services.broker import registry as registries


def weir(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", "registry", *arguments, "--data", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)


@pytest.mark.kafka
def test_start_status_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    folder = tmp_path / "registry"
    assert weir(folder, "status").returncode == 3
    started = weir(folder, "start", "--port", "0")
    try:
        assert started.returncode == 0, started.stderr
        assert " running at http://127.0.0.1:" in started.stdout
        again = weir(folder, "start", "--port", "0")
        assert again.stdout == started.stdout.replace(" running at", " already running at")
        assert weir(folder, "status").stdout == started.stdout
    finally:
        stopped = weir(folder, "stop")
    assert (stopped.returncode, stopped.stdout) == (0, "stopped\n")
    assert weir(folder, "stop").stdout == f"no registry is running in {folder}\n"
    assert weir(folder, "status").returncode == 3


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BrokerError, match=r"port \d+ .*--port"):
            registries.start(tmp_path, taken.getsockname()[1])


def test_a_process_that_took_over_the_number_is_no_registry(tmp_path: Path) -> None:
    (tmp_path / "registry.json").write_text('{"pid": 1, "port": 1, "version": "1"}')
    assert registries.status(tmp_path) is None
    assert not registries.stop(tmp_path)
