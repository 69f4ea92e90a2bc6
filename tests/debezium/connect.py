"""Kafka Connect with Debezium's connector for PostgreSQL, in a process of its own that a test may kill and start again.

A connector writes to the topic `<name>.public.<table>`. Each has a replication slot of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from services.broker.background import free_port
from services.broker.java import find_java
from services.broker.kafka_jars import LOG_SETTINGS
from services.broker.maven import Release
from services.broker.settings import HOST
from tests.broker_fixture import wait_until
from tests.debezium.postgres import DATABASE, USER, Postgres, binaries

POM = Path(__file__).with_name("pom.xml")
DEBEZIUM = Release("Debezium", POM, "debezium", "copy-dependencies", "debezium-connector-postgres-{}.jar")
READY_S = 120.0
_JVM_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

_JSON = "org.apache.kafka.connect.json.JsonConverter"
_AVRO = "io.apicurio.registry.utils.converter.AvroConverter"


def missing() -> str:
    """What is not installed that a real run needs; empty if all is there."""
    if binaries() is None or shutil.which("psql") is None:
        return "PostgreSQL is not installed (Debian, Ubuntu: apt-get install postgresql)"
    if shutil.which("mvn") is None:
        return "Maven is not installed, which fetches Debezium (Debian, Ubuntu: apt-get install maven)"
    return ""


def in_json(*, schemas: bool) -> dict[str, str]:
    """Settings of a connector that writes JSON, with the schemas beside the values or without."""
    enabled = str(schemas).lower()
    return {
        f"{part}.converter{name}": value
        for part in ("key", "value")
        for name, value in (("", _JSON), (".schemas.enable", enabled))
    }


def in_avro(registry: str) -> dict[str, str]:
    """Settings of a connector that writes Avro, framed as Confluent's serializers do.

    Args:
        registry: the Confluent-compatible address of an Apicurio Registry, beside which its own is.
    """
    settings = {
        "": _AVRO,
        ".apicurio.registry.url": registry.partition("/apis/")[0] + "/apis/registry/v2",
        ".apicurio.registry.auto-register": "true",
        ".apicurio.registry.find-latest": "true",
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.use-id": "contentId",
        ".apicurio.registry.headers.enabled": "false",
    }
    return {f"{part}.converter{name}": value for part in ("key", "value") for name, value in settings.items()}


def connector(server: Postgres, name: str, table: str, converters: Mapping[str, str], **more: str) -> dict[str, str]:
    """Settings of a connector for one table.

    Args:
        more: other settings, with `_` for `.`.
    """
    return {
        "name": name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": HOST,
        "database.port": str(server.port),
        "database.user": USER,
        "database.password": server.password,
        "database.dbname": DATABASE,
        "topic.prefix": name,
        "slot.name": name.replace("-", "_"),
        "publication.name": name.replace("-", "_"),
        "publication.autocreate.mode": "filtered",
        "table.include.list": f"public.{table}",
        "decimal.handling.mode": "double",
        "time.precision.mode": "connect",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        **converters,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


class Connect:
    """A Kafka Connect that runs some connectors. It remembers how far they are in a file of the folder."""

    def __init__(self, folder: Path, bootstrap: str, *connectors: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._port = free_port()
        self._connectors = connectors
        java = find_java(what="Kafka Connect", anywhere=True)
        jars = DEBEZIUM.files(java, lambda _: None)
        worker = {
            "bootstrap.servers": bootstrap,
            **in_json(schemas=False),
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": "1000",
            "listeners": f"http://{HOST}:{self._port}",
            "plugin.discovery": "hybrid_warn",
        }
        files = [self._written("worker", worker), *(self._written(one["name"], one) for one in connectors)]
        self._command = [
            str(java),
            *_JVM_OPTIONS,
            f"-Dweir.broker.log={folder / 'connect.log'}",
            f"-Dlog4j2.configurationFile={LOG_SETTINGS}",
            "-cp",
            f"{jars}/*",
            "org.apache.kafka.connect.cli.ConnectStandalone",
            *map(str, files),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def _written(self, name: str, settings: Mapping[str, str]) -> Path:
        path = self._folder / f"{name}.properties"
        path.touch(0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def start(self) -> None:
        """Start it; it may take seconds until it reads."""
        with (self._folder / "jvm.log").open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out, start_new_session=True)

    def wait_running(self) -> None:
        """Wait until all connectors run."""
        for one in self._connectors:
            wait_until(lambda name=one["name"]: self._runs(name), f"connector {one['name']}; {self.log()}", READY_S)

    def _runs(self, name: str) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}/connectors/{name}/status", timeout=5) as answer:
                found = json.load(answer)
        except (OSError, urllib.error.HTTPError):
            return False
        states = [task["state"] for task in found["tasks"]]
        assert "FAILED" not in states, found
        return states == ["RUNNING"]

    def log(self) -> str:
        """The last that it has said."""
        path = self._folder / "connect.log"
        return f"the log of Kafka Connect:\n{path.read_text()[-3000:] if path.exists() else ''}"

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def topic_of(connector: Mapping[str, str]) -> str:
    """The topic that a connector writes to."""
    return f"{connector['topic.prefix']}.{connector['table.include.list']}"
