"""What to say when Kafka refuses a right: which one is missing, and on what. Kafka itself names neither."""

from __future__ import annotations

from confluent_kafka import KafkaError

REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


def reason(error: KafkaError, right: str) -> str:
    """The text of an error; where Kafka refused it, the right that is needed, such as "WRITE on topic 'alarms'"."""
    return f"Kafka refuses it, this user needs {right}" if error.code() in REFUSED else str(error.str())
