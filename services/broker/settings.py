"""The Kafka server settings of a single-node broker, and their text as Kafka reads it.

Used by the development broker and by the tests' container; `docker-compose.yml` has the same settings, which a test
checks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import UsageError

HOST = "127.0.0.1"
_LARGEST_LONG = 2**63 - 1

SINGLE_NODE_SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    # There is one node, so one replica. With few partitions in the internal topics the first group and the first
    # transaction start quickly.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A mistyped topic is an error, not a new empty topic; Weir creates what it needs itself.
    "auto.create.topics.enable": "false",
    # A transaction whose producer is gone is aborted within a second of its timeout, not within ten.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # Records of 16 MiB, with room for keys, headers and batch framing.
    "message.max.bytes": str(17 * 2**20),
    "replica.fetch.max.bytes": str(17 * 2**20),
    # Event times come from the data: old records must not be deleted as expired, nor any time be refused.
    "log.retention.ms": "-1",
    "log.message.timestamp.after.max.ms": str(_LARGEST_LONG),
    # A developer who returns after weeks still finds the groups' offsets.
    "offsets.retention.minutes": str(365 * 24 * 60),
    # Kafka's default takes 128 MiB of heap.
    "log.cleaner.dedupe.buffer.size": str(16 * 2**20),
    # After kill -9 the controller refuses the restarted broker until the session of the old registration has passed.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
"""The settings that make one Kafka node a whole cluster, without listeners and folders."""


@dataclass(frozen=True)
class SaslUser:
    """The user of the SASL_PLAINTEXT (PLAIN) listener. `repr` does not show the password."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"SaslUser(user={self.user!r})"


def check_sasl(sasl: SaslUser) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", sasl.user):
        raise UsageError(f"a SASL user has letters, digits, '_', '.' and '-', got {sasl.user!r}")
    if not re.fullmatch(r"[!#-\[\]-~]+", sasl.password):
        raise UsageError("a SASL password has printable ASCII without spaces, quotes and backslashes")


def server_properties(
    data_dir: Path,
    port: int,
    controller_port: int,
    sasl_port: int | None,
    sasl: SaslUser | None,
    settings: Mapping[str, str],
) -> str:
    """The text of `server.properties`."""
    listeners = {"PLAINTEXT": port, "CONTROLLER": controller_port}
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    values = dict(SINGLE_NODE_SETTINGS)
    if sasl is not None and sasl_port is not None:
        listeners["SASL"] = sasl_port
        protocols["SASL"] = "SASL_PLAINTEXT"
        values["sasl.enabled.mechanisms"] = "PLAIN"
        values["listener.name.sasl.plain.sasl.jaas.config"] = (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{sasl.user}="{sasl.password}";'
        )
    values["listeners"] = ",".join(f"{name}://{HOST}:{number}" for name, number in listeners.items())
    values["listener.security.protocol.map"] = ",".join(f"{name}:{kind}" for name, kind in protocols.items())
    values["controller.quorum.voters"] = f"1@{HOST}:{controller_port}"
    values["log.dirs"] = str(data_dir / "log")
    values.update(settings)
    return "".join(f"{name}={_escape(value)}\n" for name, value in values.items())


def _escape(value: str) -> str:
    """A value in the syntax of a Java properties file: ASCII, backslashes doubled."""
    doubled = value.replace("\\", "\\\\")
    units = doubled.encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)
