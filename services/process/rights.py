"""Error texts for requests that Kafka refuses: they name the missing right and the resource. Kafka names neither."""

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
    """The text of an error; if Kafka refused the request, it names the needed `right`, such as "WRITE on topic 'a'"."""
    return f"Kafka refuses it, this user needs {right}" if error.code() in REFUSED else str(error.str())
