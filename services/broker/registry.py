"""A single-node Apicurio Registry on loopback, for development, tests and benchmarks.

Its Confluent-compatible API is what Weir and other clients of Kafka speak. It outlives the process that started it:

    registry.json       process id, port, version (absent after a clean stop)
    registry.log        what it prints, of the last start
    schemas.mv.db       the schemas (H2), kept over restarts

Limits: no passwords, no encryption; POSIX only.
"""

from __future__ import annotations

import signal
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
_SERVER = background.ServerKind("registry", log="registry.log", output="registry.log")


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
            known = _SERVER.find(data_dir)
            if known is not None:
                running = _registry(data_dir, known, fresh=False)
                _SERVER.wait(data_dir, known, lambda: answers(running.url), deadline_s)
                return running
            return _start(data_dir, port, deadline_s, progress)
    except OSError as error:
        raise BrokerError(f"cannot use the registry's data folder {data_dir}: {error}") from error


def stop(data_dir: Path) -> bool:
    """Stop the registry of a data folder. Returns: whether there was one to stop."""
    return _SERVER.end(data_dir.expanduser().resolve(), signal.SIGTERM, STOP_DEADLINE_S)


def kill(data_dir: Path) -> bool:
    """End the registry at once as a crash would (SIGKILL). Returns: whether there was one to kill."""
    return _SERVER.end(data_dir.expanduser().resolve(), signal.SIGKILL, STOP_DEADLINE_S)


def status(data_dir: Path) -> Registry | None:
    """The running registry of a data folder, or None. It may still be starting: see `answers`."""
    data_dir = data_dir.expanduser().resolve()
    known = _SERVER.find(data_dir)
    return _registry(data_dir, known, fresh=False) if known is not None else None


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether a registry answers at its API's address within `timeout_s` seconds."""
    try:
        # No proxy: it is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/subjects", timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _registry(data_dir: Path, known: Mapping[str, Any], *, fresh: bool) -> Registry:
    return Registry(
        url=_url(known["port"]),
        pid=known["pid"],
        port=known["port"],
        data_dir=data_dir,
        log_file=data_dir / _SERVER.log,
        version=known["version"],
        fresh=fresh,
    )


def _url(port: int) -> str:
    return f"http://{HOST}:{port}{API}"


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
        _SERVER.mark(data_dir),
        "-jar",
        str(files / "quarkus-run.jar"),
    ]
    known = {"port": port, "version": version}
    pid = _SERVER.start(data_dir, command, known, lambda: answers(_url(port)), deadline_s)
    return _registry(data_dir, {"pid": pid, **known}, fresh=True)
