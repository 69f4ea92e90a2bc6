"""A single-node Apicurio Registry on loopback, for development, tests and benchmarks.

Its Confluent-compatible API is what Weir and other clients of Kafka speak. It outlives the process that started it:

    registry.json       process id, port, version (absent after a clean stop)
    registry.log        what it prints, of the last start
    schemas.mv.db       the schemas (H2), kept over restarts

Limits: no passwords, no encryption; POSIX only.
"""

from __future__ import annotations

import json
import signal
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import BrokerError, UsageError
from services.broker import background
from services.broker.java import find_java
from services.broker.maven import Release
from services.broker.settings import HOST

DEFAULT_PORT = 8081
OLDEST_JAVA = 21
API = "/apis/ccompat/v7"
START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 10.0
_HEAP = "384m"
_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData")
_ARCHIVE = "*.tar.gz"


def _unpack(folder: Path) -> None:
    """Unpack the one archive of a folder in its place."""
    (archive,) = folder.glob(_ARCHIVE)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()


APICURIO = Release(
    "Apicurio Registry",
    Path(__file__).resolve().parents[2] / "ops" / "registry" / "pom.xml",
    "registry",
    "copy",
    "apicurio-registry-app-{}-all.tar.gz",
    _unpack,
)


@dataclass(frozen=True)
class Registry:
    """A running registry: where clients reach it, and where it lives.

    `url` is the Confluent-compatible API. `fresh` is false when `start` found the registry already running.
    """

    url: str
    pid: int
    port: int
    data_dir: Path
    log_file: Path
    version: str
    fresh: bool = True


def start(
    data_dir: Path,
    port: int = DEFAULT_PORT,
    *,
    deadline_s: float = START_DEADLINE_S,
    progress: Callable[[str], None] = lambda _: None,
) -> Registry:
    """Start the registry of a data folder and wait until it answers; a running one is returned as it is.

    Args:
        data_dir: made if missing.
        port: of loopback; 0 chooses a free one, another at each start.
        deadline_s: seconds that the started registry has to answer; fetching it does not count.
        progress: is told what happens, in a few words.

    Raises:
        UsageError: an argument is outside its accepted form.
        BrokerError: no Java, no Maven, port taken, or the registry ended or stayed silent.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"port must be in 0..65535, got {port}")
    data_dir = data_dir.expanduser().resolve()
    if ";" in str(data_dir):
        raise UsageError(f"the data folder must have no ';' in its path, got {data_dir}")
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with background.locked(data_dir):
            running = status(data_dir)
            if running is not None:
                _await_answer(running, deadline_s)
                return running
            return _start(data_dir, port, deadline_s, progress)
    except OSError as error:
        raise BrokerError(f"cannot use the registry's data folder {data_dir}: {error}") from error


def stop(data_dir: Path) -> bool:
    """Stop the registry of a data folder. Returns: whether there was one to stop."""
    return _end(data_dir, signal.SIGTERM)


def kill(data_dir: Path) -> bool:
    """End the registry at once as a crash would (SIGKILL). Returns: whether there was one to kill."""
    return _end(data_dir, signal.SIGKILL)


def status(data_dir: Path) -> Registry | None:
    """The running registry of a data folder, or None. It may still be starting: see `answers`."""
    data_dir = data_dir.expanduser().resolve()
    try:
        known = json.loads((data_dir / "registry.json").read_text())
        found = _registry(data_dir, int(known["pid"]), int(known["port"]), str(known["version"]), fresh=False)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if background.is_alive(found.pid, _mark(data_dir)) else None


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether a registry answers at its API's address within `timeout_s` seconds."""
    try:
        # No proxy: it is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/subjects", timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _registry(data_dir: Path, pid: int, port: int, version: str, *, fresh: bool) -> Registry:
    return Registry(f"http://{HOST}:{port}{API}", pid, port, data_dir, data_dir / "registry.log", version, fresh)


def _start(data_dir: Path, port: int, deadline_s: float, progress: Callable[[str], None]) -> Registry:
    java = find_java(OLDEST_JAVA, "the schema registry", anywhere=True)
    files = APICURIO.files(java, progress)
    port = port or background.free_port()
    background.check_port(port)
    version = APICURIO.version()
    progress(f"starting Apicurio Registry {version}")
    command = [
        str(java),
        f"-Xmx{_HEAP}",
        *_JVM_OPTIONS,
        f"-Dquarkus.http.host={HOST}",
        f"-Dquarkus.http.port={port}",
        f"-Dquarkus.management.host={HOST}",
        f"-Dquarkus.management.port={background.free_port(port)}",
        "-Dapicurio.storage.kind=sql",
        "-Dapicurio.storage.sql.kind=h2",
        f"-Dapicurio.datasource.url=jdbc:h2:file:{data_dir / 'schemas'};WRITE_DELAY=0",
        _mark(data_dir),
        "-jar",
        str(files / "quarkus-run.jar"),
    ]
    process = background.start(command, data_dir, data_dir / "registry.log", {"MALLOC_ARENA_MAX": "2"})
    registry = _registry(data_dir, process.pid, port, version, fresh=True)
    known = {"pid": registry.pid, "port": port, "version": version}
    try:
        background.write_private(data_dir / "registry.json", json.dumps(known) + "\n")
        _await_answer(registry, deadline_s)
    except BaseException:
        process.kill()
        process.wait()
        (data_dir / "registry.json").unlink(missing_ok=True)
        raise
    return registry


def _await_answer(registry: Registry, deadline_s: float) -> None:
    """Return when the registry answers; raise with its last log lines if it ends or the deadline passes."""
    deadline = time.monotonic() + deadline_s
    while not background.listens(registry.port) or not answers(registry.url):
        if not background.is_alive(registry.pid, _mark(registry.data_dir)):
            words = background.last_words({registry.log_file: 0})
            raise BrokerError(f"the registry ended while starting; {words}")
        if time.monotonic() > deadline:
            words = background.last_words({registry.log_file: 0})
            raise BrokerError(f"no answer within {deadline_s:g} s; {words}")
        time.sleep(background.POLL_S)


def _end(data_dir: Path, how: signal.Signals) -> bool:
    data_dir = data_dir.expanduser().resolve()
    if not data_dir.is_dir():
        return False
    with background.locked(data_dir):
        registry = status(data_dir)
        if registry is not None:
            background.end(registry.pid, _mark(data_dir), how, STOP_DEADLINE_S)
        if how is not signal.SIGKILL:
            (data_dir / "registry.json").unlink(missing_ok=True)
    return registry is not None


def _mark(data_dir: Path) -> str:
    """The argument that marks a command line as that of the registry of `data_dir`."""
    return f"-Dweir.registry.data={data_dir}"
