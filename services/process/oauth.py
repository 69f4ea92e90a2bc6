"""Access tokens for SASL/OAUTHBEARER, where the Kafka client does not fetch them itself (`services.process.security`).

`TokenSource` fetches a token from the token endpoint with the client's own credentials (OAuth 2.0 client credentials,
RFC 6749 section 4.4), and a new one when REFRESH_AT of its lifetime has passed. aiokafka gets its tokens from here.
librdkafka fetches its own. If it cannot, Weir fetches one here to find the reason, since librdkafka's message repeats
the endpoint's answer, which can contain the secret. Rejected: passing these tokens to librdkafka by confluent-kafka's
`oauth_cb`. librdkafka calls it in its own thread, also while the client or the interpreter ends, and a stopping worker
ended with a segmentation fault.

Neither the secret nor a token is ever part of a message.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import BrokerError, UsageError

TIMEOUT_S = 10.0
"""How long the token endpoint may take to answer."""

REFRESH_AT = 0.8
"""The part of a token's lifetime after which the next one is fetched; librdkafka uses the same."""

LONGEST_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Token:
    """An access token; `fetched_s` and `expires_s` are seconds since 1970."""

    value: str = field(repr=False)
    fetched_s: float
    expires_s: float

    def fresh(self, now_s: float) -> bool:
        """Whether the token need not be replaced yet. If the clock was set back, nobody knows how old it is."""
        return self.fetched_s <= now_s < self.fetched_s + REFRESH_AT * (self.expires_s - self.fetched_s)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the credentials to another server."""

    def redirect_request(self, *args: Any) -> None:
        return None


class TokenSource:
    """Fetches and stores the token of one client. For any thread.

    Args:
        context: the TLS context of https endpoints.

    Raises:
        UsageError: the URL is neither http nor https, or contains credentials.
    """

    def __init__(self, url: str, client: str, secret: str, scope: str | None, context: ssl.SSLContext | None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.username is not None or parts.password is not None:
            raise UsageError("the OAuth token URL must not carry a user name or password")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"the OAuth token URL must be http://... or https://..., got {url!r}")
        self._url = url
        self._client = client
        self._secret = secret
        self._scope = scope
        self._open = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context)).open
        self._lock = threading.Lock()
        self._token: Token | None = None

    def token(self) -> Token:
        """A token that will stay valid for some time.

        Raises:
            BrokerError: the token endpoint returns no token.
        """
        with self._lock:
            if self._token is None or not self._token.fresh(time.time()):
                self._token = self._fetch()
            return self._token

    def _fetch(self) -> Token:
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        # Like librdkafka, send name and secret unencoded. RFC 6749, 2.3.1 encodes them, but few clients do.
        basic = f"{self._client}:{self._secret}"
        request = urllib.request.Request(
            self._url,
            urllib.parse.urlencode(form).encode(),
            {"Accept": "application/json", "Authorization": "Basic " + base64.b64encode(basic.encode()).decode()},
        )
        began = time.time()
        try:
            with self._open(request, timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read(LONGEST_ANSWER_BYTES))
            value, life_s = str(found["access_token"]), float(found["expires_in"])
        except urllib.error.HTTPError as error:
            why = f"{error.code} {_reason(error)}".strip()
            raise BrokerError(f"the OAuth token endpoint {self._url} refuses client {self._client!r}: {why}") from None
        except (OSError, http.client.HTTPException) as error:
            why = str(getattr(error, "reason", error)) or type(error).__name__
            raise BrokerError(f"the OAuth token endpoint {self._url} does not answer: {why}") from None
        except (ValueError, KeyError, TypeError):
            raise BrokerError(
                f"the OAuth token endpoint {self._url} must answer with access_token and expires_in, as JSON"
            ) from None
        return Token(value, began, began + life_s)


def _reason(error: urllib.error.HTTPError) -> str:
    """The answer's error code if RFC 6749 lists it; nothing else of the answer, which may repeat the credentials."""
    try:
        code = json.loads(error.read(LONGEST_ANSWER_BYTES))["error"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""
    known = ("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "invalid_scope")
    return str(code) if code in (*known, "unsupported_grant_type") else ""
