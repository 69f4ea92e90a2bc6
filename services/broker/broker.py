"""A single-node Apache Kafka on loopback, for development, tests and benchmarks.

The broker is KRaft in combined mode (one process is broker and controller). It outlives the process that
started it: it has its own session, and everything known of it is in its data folder:

    broker.json         process id, ports, Kafka version (absent after a clean stop)
    server.properties   rewritten at each start
    broker.log          the broker's log, rolled; jvm.log holds what the JVM itself prints
    log/                Kafka's data, kept over restarts

Limits: no replication, no encryption; POSIX only.
"""

import base64
import re
import signal
import subprocess
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from schemas.errors import BrokerError, UsageError
from services.broker import background
from services.broker.background import free_port
from services.broker.java import find_java
from services.broker.kafka_jars import KAFKA, LOG_SETTINGS, kafka_version
from services.broker.settings import HOST, SaslUser, check_sasl, server_properties

DEFAULT_PORT = 9092
DEFAULT_HEAP = "512m"
START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 20.0
# Retries every 20-100 ms instead of librdkafka's 0.1-10 s, so that readiness is seen when it comes.
_PROBE_SETTINGS = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
_SERVER = background.ServerKind("broker", log="broker.log", output="jvm.log")


@dataclass(frozen=True)
class Broker:
    """A running broker: where clients reach it, and where it lives.

    `bootstrap` is the unencrypted listener without passwords; `sasl_bootstrap` the SASL_PLAINTEXT one, if
    asked for. `fresh` is false when `start` found the broker already running.
    """

    bootstrap: str
    pid: int
    port: int
    data_dir: Path
    log_file: Path
    version: str
    sasl_bootstrap: str | None = None
    fresh: bool = True


def start(
    data_dir: Path,
    port: int = DEFAULT_PORT,
    *,
    heap: str = DEFAULT_HEAP,
    sasl: SaslUser | None = None,
    settings: Mapping[str, str] | None = None,
    deadline_s: float = START_DEADLINE_S,
    progress: Callable[[str], None] = lambda _: None,
) -> Broker:
    """Start the broker of a data folder and wait until it answers; a running one is returned as it is.

    Args:
        data_dir: made if missing; formatted at the first start, kept afterwards.
        port: of the loopback listener; 0 chooses a free one, another at each start.
        heap: the JVM's largest heap, as `512m` or `2g`.
        sasl: adds a SASL_PLAINTEXT listener on a free port for this user.
        settings: Kafka server settings beside or instead of `SINGLE_NODE_SETTINGS`.
        deadline_s: seconds that the started broker has to answer; fetching jars does not count.
        progress: is told what happens, in a few words.

    Raises:
        UsageError: an argument is outside its accepted form.
        BrokerError: no Java, no Maven, port taken, or the broker ended or stayed silent.
    """
    if not re.fullmatch(r"[1-9]\d*[kmg]", heap, re.IGNORECASE):
        raise UsageError(f"heap must be a number with k, m or g, such as 512m or 2g, got {heap!r}")
    if not 0 <= port <= 65535:
        raise UsageError(f"port must be in 0..65535, got {port}")
    if sasl is not None:
        check_sasl(sasl)
    data_dir = data_dir.expanduser().resolve()
    if "," in str(data_dir):
        raise UsageError(f"the data folder must have no ',' in its path, got {data_dir}")
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with background.locked(data_dir):
            known = _SERVER.find(data_dir)
            if known is not None:
                running = _broker(data_dir, known, fresh=False)
                _SERVER.wait(data_dir, known, lambda: answers(running.bootstrap), deadline_s)
                return running
            return _start(data_dir, port, heap, sasl, settings or {}, deadline_s, progress)
    except OSError as error:
        raise BrokerError(f"cannot use the broker's data folder {data_dir}: {error}") from error


def stop(data_dir: Path, *, deadline_s: float = STOP_DEADLINE_S) -> bool:
    """Stop the broker of a data folder: politely, and by force after `deadline_s` seconds.

    Returns: whether there was one to stop.
    """
    return _SERVER.end(data_dir.expanduser().resolve(), signal.SIGTERM, deadline_s)


def kill(data_dir: Path) -> bool:
    """End the broker at once as a crash would (SIGKILL); its `broker.json` stays behind, as after a crash.

    Returns: whether there was one to kill.
    """
    return _SERVER.end(data_dir.expanduser().resolve(), signal.SIGKILL, STOP_DEADLINE_S)


def status(data_dir: Path) -> Broker | None:
    """The running broker of a data folder, or None. It may still be starting: see `answers`."""
    data_dir = data_dir.expanduser().resolve()
    known = _SERVER.find(data_dir)
    return _broker(data_dir, known, fresh=False) if known is not None else None


def answers(bootstrap: str, timeout_s: float = 2.0) -> bool:
    """Whether a broker at `bootstrap` answers a metadata request within `timeout_s` seconds."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **_PROBE_SETTINGS})
    try:
        return bool(admin.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def _start(
    data_dir: Path,
    port: int,
    heap: str,
    sasl: SaslUser | None,
    settings: Mapping[str, str],
    deadline_s: float,
    progress: Callable[[str], None],
) -> Broker:
    java = find_java()
    jars = KAFKA.files(java, progress)
    port = port or free_port()
    background.check_port(port)
    controller_port = free_port(port)
    sasl_port = free_port(port, controller_port) if sasl else None
    properties = data_dir / "server.properties"
    background.write_private(properties, server_properties(data_dir, port, controller_port, sasl_port, sasl, settings))
    if not (data_dir / "log" / "meta.properties").exists():
        progress("formatting the data folder")
        _format(_command(java, jars, heap, data_dir, "kafka.tools.StorageTool"), data_dir, properties)
    progress(f"starting Kafka {kafka_version()}")
    command = [*_command(java, jars, heap, data_dir, "kafka.Kafka"), str(properties)]
    known = {"port": port, "sasl_port": sasl_port, "version": kafka_version()}
    pid = _SERVER.start(data_dir, command, known, lambda: answers(f"{HOST}:{port}"), deadline_s)
    return _broker(data_dir, {"pid": pid, **known}, fresh=True)


def _broker(data_dir: Path, known: Mapping[str, Any], *, fresh: bool) -> Broker:
    return Broker(
        bootstrap=f"{HOST}:{known['port']}",
        pid=known["pid"],
        port=known["port"],
        data_dir=data_dir,
        log_file=data_dir / _SERVER.log,
        version=known["version"],
        sasl_bootstrap=f"{HOST}:{known['sasl_port']}" if known["sasl_port"] else None,
        fresh=fresh,
    )


# The serial collector and the first compiler alone: measured on two cores, as many records per second as with
# the server defaults, quicker to start, and no compiler or collector threads that take the cores from the
# clients under test. The young generation is small: collecting it takes some 25 ms, during which no client is answered,
# and took 60 ms at its usual third of the heap.
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:MaxNewSize=40m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)


def _command(java: Path, jars: Path, heap: str, data_dir: Path, main: str) -> list[str]:
    """The command line that runs class `main` of Kafka for a data folder."""
    return [
        str(java),
        f"-Xmx{heap}",
        *_JVM_OPTIONS,
        f"-Dlog4j2.configurationFile={LOG_SETTINGS}",
        f"-Dweir.broker.log={data_dir / 'broker.log'}",
        _SERVER.mark(data_dir),
        "-cp",
        f"{jars}/*",
        main,
    ]


def _format(tool: list[str], data_dir: Path, properties: Path) -> None:
    """Give an empty data folder its cluster id and feature levels, with Kafka's own tool."""
    random_id = bytearray(uuid.uuid4().bytes)
    random_id[0] &= 0x7F  # or the text could begin with '-', which the tool takes for an option
    cluster_id = base64.urlsafe_b64encode(bytes(random_id)).decode().rstrip("=")
    command = [*tool, "format", "--cluster-id", cluster_id, "--config", str(properties)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=data_dir, check=False)
    if done.returncode != 0:
        lines = background.telling((done.stderr + done.stdout).strip().splitlines())
        raise BrokerError(f"cannot format {data_dir / 'log'}: " + "\n  ".join(lines))
