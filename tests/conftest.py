"""Fixtures of all tests."""

from tests.broker_fixture import broker, restartable_broker, topics

__all__ = ["broker", "restartable_broker", "topics"]
