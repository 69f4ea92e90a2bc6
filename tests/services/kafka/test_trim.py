"""Records of Weir's own topics that Kafka does not delete. The test plays Kafka."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients

MOVED = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
NO_RIGHT = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def test_a_missing_right_is_warned_of_once_per_topic(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any other failure, such as a leader that had moved, it was not, and the topic grew."""
    caplog.set_level(logging.DEBUG, "weir.topics")
    admin = TopicAdmin(KafkaClients("localhost:1"))

    def trim(topic: str, error: KafkaError) -> int:
        """Returns the level of what is logged."""
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(error))
        monkeypatch.setattr(admin, "_answers", lambda ask: {TopicPartition(topic, 0, 5): answer})
        caplog.clear()
        admin.trim({(topic, 0): 5})
        (record,) = caplog.records
        assert record.fields["topic"] == topic  # type: ignore[attr-defined]
        return record.levelno

    levels = [trim("spill", error) for error in (MOVED, NO_RIGHT, MOVED, NO_RIGHT)]
    assert levels == [logging.DEBUG, logging.WARNING, logging.DEBUG, logging.DEBUG]
    assert trim("repeats", NO_RIGHT) == logging.WARNING
