"""How to reach Kafka: bootstrap servers and security, for the two client libraries in use.

Every client is configured by `KafkaClients`. Its `repr` shows no secrets, and no configuration is ever logged.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.errors import BrokerError, UsageError
from services.process.oauth import TokenSource

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTH = "OAUTHBEARER"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTH)

HANDSHAKE_S = 5.0
"""How long a broker may take for the TLS handshake by which we find out why its certificate was refused."""

LASTING = {"metadata.recovery.strategy": "rebootstrap", "topic.metadata.refresh.interval.ms": 3_000}
"""Settings that help a long-running client to find its brokers again after all were unreachable for a moment.

A librdkafka client (2.13 and 2.16) forgets a broker that the metadata no longer name, and a broker that has just
started names none. Without rebootstrapping, up to half of all clients had no broker any more, for ever, after a restart
of a single broker. With it, 1 in 30 had none while metadata were requested only every five minutes; with both settings
about one in a thousand. So the reader of a log replaces a consumer that delivers nothing
(`services.kafka.log_consumer.LogReader`), and the control log replaces a producer that cannot write."""

TRANSACTIONAL = {"metadata.recovery.strategy": "none"}
"""Settings of a transactional producer. With rebootstrapping nearly every such producer has a call that does not return
when all brokers were unreachable for a moment (`services.kafka.call_thread`). Without it a producer may never find a
broker again, as above: then calls are given up after a while (`services.delivery.sink.PATIENCE_S`), and the task
restarts with a new producer."""

RECONNECTING = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500}
"""How soon librdkafka tries a broker again. By default it waits up to 10 s, although the address of a lost coordinator
may long be that of another broker."""


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """Connection settings, checked by the constructor.

    Attributes:
        bootstrap: bootstrap servers, `HOST:PORT[,HOST:PORT...]`.
        username: of the SASL user; with OAUTHBEARER, the id of the OAuth client.
        password: of the SASL user; with OAUTHBEARER, the secret of the OAuth client.
        ca: file of trusted certificates, for brokers and an https token endpoint.
        certificate: file of the client's own certificate.
        key: file of its private key; None if that is in the same file.
        token_url: the OAuth token endpoint.
        scope: the scope to request there.

    Raises:
        UsageError: an unknown protocol or mechanism, SASL without a name and password, a file that cannot be read.
        BrokerError: the private key does not open with its password.
    """

    bootstrap: str
    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    token_url: str | None = None
    scope: str | None = None

    def __post_init__(self) -> None:
        self.servers()
        if self.protocol not in PROTOCOLS:
            raise UsageError(f"security protocol must be one of {', '.join(PROTOCOLS)}, got {self.protocol!r}")
        if self._sasl:
            if (self.mechanism or "PLAIN") not in MECHANISMS:
                raise UsageError(f"SASL mechanism must be one of {', '.join(MECHANISMS)}, got {self.mechanism!r}")
            if not self.username or self.password is None:
                raise UsageError(f"security protocol {self.protocol} needs a SASL user name and password")
            if self.mechanism == OAUTH and not self.token_url:
                raise UsageError("SASL mechanism OAUTHBEARER needs an OAuth token URL")
        if self.key and not self.certificate:
            raise UsageError(f"the private key {self.key} needs its certificate")
        if self._tls:
            self._context()
        if self._oauth:
            _token_source(self)

    @property
    def _sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def _tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def _oauth(self) -> bool:
        return self._sasl and self.mechanism == OAUTH

    def servers(self) -> list[str]:
        """The bootstrap servers, each `host:port`."""
        servers = [server.strip() for server in self.bootstrap.split(",") if server.strip()]
        for server in servers:
            host, _, port = server.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise UsageError(f"bootstrap server must be HOST:PORT, got {server!r}")
        if not servers:
            raise UsageError("bootstrap servers must be HOST:PORT[,HOST:PORT...], got an empty text")
        return servers

    def librdkafka(self, **more: Any) -> dict[str, Any]:
        """Configuration of a confluent-kafka client, with `more` (dots written as `__`) added."""
        conf: dict[str, Any] = {
            "bootstrap.servers": ",".join(self.servers()),
            "security.protocol": self.protocol,
            **RECONNECTING,
            **(TRANSACTIONAL if "transactional__id" in more else LASTING),
        }
        if self._oauth:
            conf |= {
                "sasl.mechanism": OAUTH,
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": self.username,
                "sasl.oauthbearer.client.secret": self.password,
                "sasl.oauthbearer.token.endpoint.url": self.token_url,
            }
            given = {"sasl.oauthbearer.scope": self.scope, "https.ca.location": self.ca}
            conf |= {name: value for name, value in given.items() if value}
        elif self._sasl:
            conf |= {
                "sasl.mechanism": self.mechanism or "PLAIN",
                "sasl.username": self.username,
                "sasl.password": self.password,
            }
        if self._tls:
            given = {
                "ssl.ca.location": self.ca,
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.key or self.certificate,
                "ssl.key.password": self.key_password,
            }
            conf |= {name: value for name, value in given.items() if value}
            if not self.check_hostname:
                conf["ssl.endpoint.identification.algorithm"] = "none"
        return conf | {name.replace("__", "."): value for name, value in more.items()}

    def aiokafka(self) -> dict[str, Any]:
        """Security keyword arguments of an aiokafka client."""
        conf: dict[str, Any] = {"security_protocol": self.protocol}
        if self._oauth:
            conf |= {"sasl_mechanism": OAUTH, "sasl_oauth_token_provider": _provider(_token_source(self))}
        elif self._sasl:
            conf |= {
                "sasl_mechanism": self.mechanism or "PLAIN",
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        if self._tls:
            conf["ssl_context"] = self._context()
        return conf

    def explain(self, reason: str) -> str:
        """librdkafka's reason for a failed connection, in one clear line."""
        reason = reason.partition(" (after ")[0]
        if "certificate verify failed" in reason:
            # librdkafka reports an unknown authority, a wrong host name and an expired certificate alike.
            return self._handshake_problem() or reason
        if "unexpired token" in reason:
            return f"the OAuth token endpoint {self.token_url} gave a token that has expired; do the clocks agree?"
        if "OAUTHBEARER token" in reason:
            return self._token_problem()  # without the endpoint's answer, which librdkafka repeats
        if '"status":"invalid_token"' in reason:
            return f"the broker refuses the access token of OAuth client {self.username!r}: it is not meant for it"
        if "authentication error: " in reason:
            why = re.sub(r"^.*authentication error: ", "", reason)
            return f"the broker refuses user {self.username!r} with {self.mechanism or 'PLAIN'}: {why}"
        if "alert bad certificate" in reason or "alert certificate required" in reason:
            return f"the broker refuses our certificate {self.certificate or '(none is given)'}: {reason}"
        return reason

    def _token_problem(self) -> str:
        """Why there is no OAuth token."""
        try:
            _token_source(self).token()
        except BrokerError as error:
            return str(error)
        return f"the OAuth token endpoint {self.token_url} gave librdkafka no token"

    def _handshake_problem(self) -> str:
        """Why the certificate of the first untrusted bootstrap server is not trusted; empty if all are trusted."""
        for server in self.servers():
            host, _, port = server.rpartition(":")
            name = host.strip("[]")
            try:
                with socket.create_connection((name, int(port)), HANDSHAKE_S) as plain:
                    self._context().wrap_socket(plain, server_hostname=name).close()
            except ssl.SSLCertVerificationError as error:
                trusted = self.ca or "the system's"
                why = error.verify_message.rstrip(".")
                return f"the certificate of broker {server} is not trusted: {why} (trusted authorities: {trusted})"
            except OSError:
                continue
        return ""

    def _context(self) -> ssl.SSLContext:
        """The TLS context of aiokafka and the token endpoint: trusted authorities and our own certificate."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise UsageError(f"TLS files cannot be used: trusted authorities {self.ca}: {_reason(error)}") from None
        if self.certificate:
            key = self.key or self.certificate
            try:
                encrypted = b"ENCRYPTED" in Path(key).read_bytes()
                if encrypted and not self.key_password:
                    raise BrokerError(f"the private key {key} is encrypted, and no password is given for it")
                # Without a password OpenSSL would prompt on the terminal.
                context.load_cert_chain(self.certificate, key, self.key_password or "")
            except OSError as error:
                mismatch = isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH"
                if isinstance(error, ssl.SSLError) and encrypted and not mismatch:
                    raise BrokerError(f"the private key {key} does not open with the given password") from None
                files = f"certificate {self.certificate}, key {key}"
                raise UsageError(f"TLS files cannot be used: {files}: {_reason(error)}") from None
        context.check_hostname = self.check_hostname
        return context


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)


@functools.cache
def _token_source(clients: KafkaClients) -> TokenSource:
    """One token source for all clients with these settings, so that they share tokens."""
    assert clients.token_url is not None
    assert clients.username is not None
    assert clients.password is not None
    context = clients._context() if clients.token_url.startswith("https:") else None
    return TokenSource(clients.token_url, clients.username, clients.password, clients.scope, context)


def _provider(source: TokenSource) -> Any:
    """The token source as aiokafka's token provider."""
    from aiokafka.abc import AbstractTokenProvider
    from aiokafka.errors import KafkaConnectionError

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            try:
                return (await asyncio.to_thread(source.token)).value
            except BrokerError as error:
                raise KafkaConnectionError(str(error)) from None  # it tries again

    return Provider()
