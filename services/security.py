"""How to reach Kafka: bootstrap servers and security, for the two client libraries in use.

Secrets stay inside: `repr` shows none, and no configuration is ever logged.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import UsageError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """Connection settings, checked when made.

    Raises:
        UsageError: an unknown protocol or mechanism, SASL without a name and password, a certificate that
            cannot be read.
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

    def __post_init__(self) -> None:
        self.servers()
        if self.protocol not in PROTOCOLS:
            raise UsageError(f"security protocol must be one of {', '.join(PROTOCOLS)}, got {self.protocol!r}")
        if self._sasl:
            if (self.mechanism or "PLAIN") not in MECHANISMS:
                raise UsageError(f"SASL mechanism must be one of {', '.join(MECHANISMS)}, got {self.mechanism!r}")
            if not self.username or self.password is None:
                raise UsageError(f"security protocol {self.protocol} needs a SASL user name and password")
        if self._tls:
            self._context()

    @property
    def _sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def _tls(self) -> bool:
        return self.protocol.endswith("SSL")

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
            # Rebootstrapping, the default, deadlocks a transactional producer of librdkafka 2.16 when all
            # brokers were gone for a moment: no call returns any more (compare its issue 5511).
            "metadata.recovery.strategy": "none",
        }
        if self._sasl:
            conf |= {
                "sasl.mechanism": self.mechanism or "PLAIN",
                "sasl.username": self.username,
                "sasl.password": self.password,
            }
        if self._tls:
            given = {
                "ssl.ca.location": self.ca,
                "ssl.certificate.location": self.certificate,
                "ssl.key.location": self.key,
                "ssl.key.password": self.key_password,
            }
            conf |= {name: value for name, value in given.items() if value}
            if not self.check_hostname:
                conf["ssl.endpoint.identification.algorithm"] = "none"
        return conf | {name.replace("__", "."): value for name, value in more.items()}

    def aiokafka(self) -> dict[str, Any]:
        """Security keyword arguments of an aiokafka client."""
        conf: dict[str, Any] = {"security_protocol": self.protocol}
        if self._sasl:
            conf |= {
                "sasl_mechanism": self.mechanism or "PLAIN",
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        if self._tls:
            conf["ssl_context"] = self._context()
        return conf

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key, self.key_password)
        except OSError as error:
            files = ", ".join(path for path in (self.ca, self.certificate, self.key) if path)
            raise UsageError(f"TLS files cannot be used ({error}): {files}") from None
        context.check_hostname = self.check_hostname
        return context
