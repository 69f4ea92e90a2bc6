"""How to reach a schema registry. Its `repr` shows no secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """How to reach a schema registry.

    Attributes:
        url: None where a stream names its own.
        token: a bearer token.
        ca: file of trusted certificates.
        certificate: file of the client's own certificate.
        key: file of its private key; None if that is in the same file.
    """

    url: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def client_settings(self, url: str) -> dict[str, Any]:
        """The settings of Confluent's client.

        The name, the password, the token and the certificate go to the registry that they are given for: a query may
        name any other.
        """
        found: dict[str, Any] = {"url": url, "timeout": TIMEOUT_S, "max.retries": 0}
        if self.url is None or _origin(url) != _origin(self.url):
            return found | ({"ssl.ca.location": self.ca} if self.ca else {})
        if self.username is not None:
            found["basic.auth.user.info"] = f"{self.username}:{self.password or ''}"
        if self.token is not None:
            # The client wants the name of a cluster of Confluent Cloud; other registries ignore it.
            source = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.logical.cluster": ""}
            found |= {**source, "bearer.auth.token": self.token}
        files = {
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key or self.certificate,
        }
        return found | {name: file for name, file in files.items() if file}


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
