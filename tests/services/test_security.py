"""Security settings: checked, passed to both client libraries, shown by nobody."""

from __future__ import annotations

import pytest

from schemas.errors import UsageError
from services.security import KafkaClients


def test_both_libraries_get_sasl() -> None:
    clients = KafkaClients("a:1,b:2", "SASL_PLAINTEXT", "SCRAM-SHA-512", "me", "word")
    assert clients.servers() == ["a:1", "b:2"]
    assert (
        clients.librdkafka(group__id="g").items()
        >= {
            "bootstrap.servers": "a:1,b:2",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "me",
            "sasl.password": "word",
            "group.id": "g",
        }.items()
    )
    assert clients.aiokafka() == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "word",
    }


def test_both_libraries_get_tls() -> None:
    clients = KafkaClients("a:1", "SSL", check_hostname=False)
    assert clients.librdkafka()["ssl.endpoint.identification.algorithm"] == "none"
    assert clients.aiokafka()["ssl_context"].check_hostname is False


def test_secrets_are_not_shown() -> None:
    clients = KafkaClients("a:1", "SASL_PLAINTEXT", None, "me", "word", key_password="other")
    assert "word" not in repr(clients)
    assert "other" not in repr(clients)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a:1", "TLS"), "security protocol must be one of PLAINTEXT, SSL, .*got 'TLS'"),
        (("a:1", "SASL_SSL", "GSSAPI", "u", "p"), "SASL mechanism must be one of .*got 'GSSAPI'"),
        (("a:1", "SASL_SSL"), "needs a SASL user name and password"),
        (("a:1", "SSL", None, None, None, "/nowhere/ca.pem"), "TLS files cannot be used .*nowhere/ca.pem"),
        (("a",), "bootstrap server must be HOST:PORT, got 'a'"),
        (("a:0",), "got 'a:0'"),
        ((" , ",), "got an empty text"),
    ],
)
def test_misuse_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KafkaClients(*arguments)
