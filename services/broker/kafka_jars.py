"""The release of Kafka that the development broker and the tests run, as `ops/kafka/pom.xml` names it."""

from __future__ import annotations

from pathlib import Path

from services.broker.maven import Release

_RESOURCES = Path(__file__).resolve().parents[2] / "ops" / "kafka"
LOG_SETTINGS = _RESOURCES / "log4j2.properties"
KAFKA = Release("Kafka", _RESOURCES / "pom.xml", "kafka", "copy-dependencies", "kafka_*-{}.jar")


def kafka_version() -> str:
    """The pinned Kafka release."""
    return KAFKA.version()
