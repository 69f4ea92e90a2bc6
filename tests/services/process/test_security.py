"""Security settings: checked, passed to both client libraries, shown by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.errors import BrokerError, UsageError
from services.process.oauth import Token, TokenSource
from services.process.security import KafkaClients
from tests.secure_broker import Authority


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
        (("a:1", "SSL", None, None, None, "/nowhere/ca.pem"), "trusted authorities /nowhere/ca.pem: No such file"),
        (("a:1", "SASL_SSL", "OAUTHBEARER", "me", "word"), "OAUTHBEARER needs an OAuth token URL"),
        (("a:1", "SSL", *[None] * 5, "k.pem"), "the private key k.pem needs its certificate"),
        (("a",), "bootstrap server must be HOST:PORT, got 'a'"),
        (("a:0",), "got 'a:0'"),
        ((" , ",), "got an empty text"),
    ],
)
def test_misuse_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KafkaClients(*arguments)


@pytest.mark.parametrize("url", ["http://a/b", "https://a/b"])
def test_both_libraries_get_oauth(url: str) -> None:
    """And a token is renewed before it expires."""
    clients = KafkaClients("a:1", "SASL_SSL", "OAUTHBEARER", "me", "word", token_url=url, scope="some")
    provider = clients.aiokafka()["sasl_oauth_token_provider"]
    assert type(provider).__mro__[1].__name__ == "AbstractTokenProvider"
    own = {name: value for name, value in clients.librdkafka().items() if name.startswith("sasl.oauthbearer.")}
    assert own == {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "word",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.scope": "some",
    }
    token = Token("secret", 1000.0, 1100.0)
    assert [token.fresh(at) for at in (1000.0, 1079.0, 1080.0)] == [True, True, False]
    assert not token.fresh(999.0), "the clock was set back: it would be used until long after it has expired"
    assert "secret" not in repr(token)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://a/b", "must be http://... or https://..., got 'ftp://a/b'"),
        ("https://me:word@a/b", "must not carry a user name or password"),
        ("a/b", "got 'a/b'"),
    ],
)
def test_token_urls_are_checked(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TokenSource(url, "me", "word", None, None)


def test_a_private_key_opens_with_its_password_alone(tmp_path: Path) -> None:
    """Without a password OpenSSL asked whoever sat at the terminal for one, and a worker waited."""
    authority = Authority(tmp_path, "authority")
    certificate, key = map(str, authority.signed("me", password="the word"))
    other, other_key = map(str, authority.signed("other"))
    both = tmp_path / "both.pem"
    both.write_text(Path(other).read_text() + Path(other_key).read_text())

    def clients(certificate: str, key: str | None, password: str | None) -> KafkaClients:
        return KafkaClients("a:1", "SSL", certificate=certificate, key=key, key_password=password)

    conf = clients(certificate, key, "the word").librdkafka()
    assert (conf["ssl.key.location"], conf["ssl.key.password"]) == (key, "the word")
    assert clients(str(both), None, None).librdkafka()["ssl.key.location"] == str(both)
    for password, message in ((None, "is encrypted, and no password is given"), ("a word", "does not open with the")):
        with pytest.raises(BrokerError, match=f"the private key {key} {message}") as refused:
            clients(certificate, key, password)
        assert refused.value.exit_code == 1
        assert "a word" not in str(refused.value)
    with pytest.raises(UsageError, match=f"certificate {other}, key {key}: KEY_VALUES_MISMATCH"):
        clients(other, key, "the word")


def options(*arguments: str, **variables: str) -> str:
    """Run `weir query list`: its one line of complaint."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")} | variables
    command = [sys.executable, "-m", "services.cli", "query", "list", "--bootstrap", "127.0.0.1:1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "s3cret" not in done.stderr
    return done.stderr


def test_secrets_come_by_file_or_variable(tmp_path: Path) -> None:
    """`--sasl-password` showed it to every user of the machine, in the list of processes."""
    said = options("--sasl-password", "s3cret")
    assert "No such option" in said
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    file = ("--sasl-password-file", str(secret))
    assert "both given: give one" in options(*file, WEIR_KAFKA_SASL_PASSWORD="s3cret")
    said = options("--ssl-key-password-file", str(tmp_path / "nowhere"))
    assert said == f"weir: --ssl-key-password-file {tmp_path}/nowhere cannot be read: No such file or directory\n"
