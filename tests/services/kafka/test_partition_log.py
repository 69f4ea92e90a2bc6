"""Partitions as they are stored, read while Kafka misbehaves."""

from __future__ import annotations

import socket
import time

import pytest

from schemas.errors import BrokerError
from services.kafka.partition_log import PartitionLogs
from services.process.security import KafkaClients


def test_kafka_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt is, and all of them are in the end: the task that waits for it can be tried again."""
    monkeypatch.setattr("services.kafka.partition_log.ATTEMPT_S", 0.3)
    monkeypatch.setattr("services.kafka.partition_log.TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began = time.monotonic()
        with (
            pytest.raises(BrokerError, match=r"any\[0\] cannot be read: no answer within 0\.3 s"),
            PartitionLogs(KafkaClients(f"127.0.0.1:{mute.getsockname()[1]}")) as logs,
        ):
            list(logs.batches(("any", 0), 0))
        assert time.monotonic() - began < 20
