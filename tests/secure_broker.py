"""A broker with authentication: TLS, every SASL mechanism that Weir supports, access control, and a token server.

Certificates, keys and signatures are made by the `openssl` command. Listeners, all on loopback:

    admin    PLAINTEXT; clients of this listener may do everything
    sasl     SASL_SSL with PLAIN, SCRAM-SHA-512 and OAUTHBEARER
    mutual   SSL, with a certificate of the client's own

The broker's certificate is for 127.0.0.1 alone, so `localhost` is a wrong host name.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from services.broker import broker as local_broker
from services.broker.background import free_port
from services.broker.settings import HOST
from tests.broker_fixture import Topics

PLAIN_USER, SCRAM_USER, MUTUAL_USER, OAUTH_USER = "peter", "sarah", "mary", "oscar"
"""Users that may do everything, one per mechanism."""

SECRETS = {
    PLAIN_USER: "pl4in-s3cret-of-peter",
    SCRAM_USER: "scr4m-s3cret-of-sarah",
    MUTUAL_USER: "k3y-s3cret-of-mary",
    OAUTH_USER: "cl1ent+s3cret%2Dof-oscar",
}


AUDIENCE = "weir-tests"


def openssl(*arguments: str | Path, given: bytes = b"") -> bytes:
    """Run `openssl`; returns its output."""
    done = subprocess.run(["openssl", *map(str, arguments)], input=given, capture_output=True, check=False)
    assert done.returncode == 0, f"openssl {arguments}: {done.stderr.decode()}"
    return done.stdout


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        subject = ("-subj", f"/CN={name}", "-days", "2", "-nodes")
        openssl("req", "-x509", "-newkey", "rsa:2048", "-keyout", self._key, "-out", self.certificate, *subject)

    def signed(self, name: str, *extensions: str, password: str | None = None) -> tuple[Path, Path]:
        """A certificate for `name`, and its key, encrypted if there is a password."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        more = self.folder / f"{name}.extensions"
        more.write_text("\n".join(extensions))
        signer = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", "2", "-extfile", more)
        openssl("x509", "-req", "-in", request, "-out", certificate, *signer)
        if password is not None:
            plain = key.rename(key.with_suffix(".plain"))
            openssl("pkcs8", "-topk8", "-v2", "aes256", "-in", plain, "-out", key, "-passout", f"pass:{password}")
            plain.unlink()
        return certificate, key


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class TokenServer:
    """An OAuth token endpoint for client credentials.

    Attributes:
        life_s: lifetime of the tokens; if it is negative they have expired, although the answer says otherwise.
        audience: the audience of the tokens.
        given: every token that it returned.
    """

    def __init__(self, folder: Path) -> None:
        self._key = folder / "tokens.key"
        self.jwks = folder / "jwks.json"
        openssl("genrsa", "-out", self._key, "2048")
        modulus = openssl("rsa", "-in", self._key, "-noout", "-modulus").decode().strip().partition("=")[2]
        key = {"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", "n": _b64(bytes.fromhex(modulus)), "e": "AQAB"}
        self.jwks.write_text(json.dumps({"keys": [key]}))
        self.life_s = 300
        self.audience = AUDIENCE
        self.given: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                basic = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
                client, _, secret = basic.partition(":")
                if form.get("grant_type") != ["client_credentials"]:
                    self._answer(400, {"error": "unsupported_grant_type"})
                elif SECRETS.get(client) != secret:
                    # As bad servers do, it repeats the request in its answer.
                    self._answer(401, {"error": "invalid_client", "error_description": f"no such secret: {secret}"})
                else:
                    token = server.token(client, form.get("scope", ["none"])[0])
                    server.given.append(token)
                    self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": abs(server.life_s)})

            def _answer(self, code: int, answer: Mapping[str, object]) -> None:
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._http.server_port}/token"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def token(self, subject: str, scope: str) -> str:
        """A signed JSON Web Token."""
        now = int(time.time())
        claims = {"sub": subject, "aud": self.audience, "scope": scope, "iat": now - 600, "exp": now + self.life_s}
        parts = ({"alg": "RS256", "kid": "1", "typ": "JWT"}, claims)
        signed = ".".join(_b64(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_b64(openssl('dgst', '-sha256', '-sign', self._key, given=signed.encode()))}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@dataclass
class SecureBroker:
    """The broker's addresses, and credentials as environments for `weir`."""

    folder: Path
    port: int
    sasl_port: int
    mutual_port: int
    authority: Authority
    stranger: Authority
    tokens: TokenServer
    mary: tuple[Path, Path]
    topics: Topics = field(init=False)

    def __post_init__(self) -> None:
        self.topics = Topics(f"{HOST}:{self.port}")
        self.admin = AdminClient({"bootstrap.servers": self.topics.bootstrap, "log_level": 0})

    @property
    def sasl(self) -> str:
        return f"{HOST}:{self.sasl_port}"

    def plain(self) -> dict[str, str]:
        """PLAIN over TLS, with the password in a variable."""
        return self._sasl("PLAIN", PLAIN_USER) | {"WEIR_KAFKA_SASL_PASSWORD": SECRETS[PLAIN_USER]}

    def scram(self, user: str = SCRAM_USER) -> dict[str, str]:
        """SCRAM-SHA-512 over TLS, with the password in a file."""
        return self._sasl("SCRAM-SHA-512", user) | {"WEIR_KAFKA_SASL_PASSWORD_FILE": self.secret_file(SCRAM_USER)}

    def oauth(self) -> dict[str, str]:
        """OAUTHBEARER over TLS, with the client's secret in a file."""
        return self._sasl("OAUTHBEARER", OAUTH_USER) | {
            "WEIR_KAFKA_SASL_PASSWORD_FILE": self.secret_file(OAUTH_USER),
            "WEIR_KAFKA_OAUTH_TOKEN_URL": self.tokens.url,
            "WEIR_KAFKA_OAUTH_SCOPE": "kafka",
        }

    def mutual(self) -> dict[str, str]:
        """TLS with a certificate of our own, whose key is encrypted."""
        certificate, key = self.mary
        return {
            "WEIR_BOOTSTRAP": f"{HOST}:{self.mutual_port}",
            "WEIR_KAFKA_SECURITY_PROTOCOL": "SSL",
            "WEIR_KAFKA_SSL_CA": str(self.authority.certificate),
            "WEIR_KAFKA_SSL_CERTIFICATE": str(certificate),
            "WEIR_KAFKA_SSL_KEY": str(key),
            "WEIR_KAFKA_SSL_KEY_PASSWORD_FILE": self.secret_file(MUTUAL_USER),
        }

    def _sasl(self, mechanism: str, user: str) -> dict[str, str]:
        return {
            "WEIR_BOOTSTRAP": self.sasl,
            "WEIR_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "WEIR_KAFKA_SASL_MECHANISM": mechanism,
            "WEIR_KAFKA_SASL_USERNAME": user,
            "WEIR_KAFKA_SSL_CA": str(self.authority.certificate),
        }

    def secret_file(self, user: str) -> str:
        """A file with a user's secret, as Docker and Kubernetes provide it."""
        path = self.folder / f"{user}.secret"
        path.write_text(SECRETS[user] + "\n")
        return str(path)

    def add_scram_user(self, user: str, password: str = SECRETS[SCRAM_USER]) -> None:
        """Add a user without any rights."""
        form = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(user, form, password.encode())
        for future in self.admin.alter_user_scram_credentials([wanted]).values():
            future.result(30)


@contextmanager
def secure_broker(folder: Path) -> Iterator[SecureBroker]:
    """Start a secure broker; it stops at the end of the block."""
    authority, stranger = Authority(folder, "authority"), Authority(folder, "stranger")
    certificate, key = authority.signed("broker", f"subjectAltName=IP:{HOST}")
    store = folder / "broker-store.pem"
    pkcs8 = openssl("pkcs8", "-topk8", "-nocrypt", "-in", key)
    store.write_bytes(pkcs8 + certificate.read_bytes())
    tokens = TokenServer(folder)
    ports: list[int] = []
    for _ in range(4):
        ports.append(free_port(*ports))
    port, controller, sasl, mutual = ports
    mary = authority.signed(MUTUAL_USER, "extendedKeyUsage=clientAuth", password=SECRETS[MUTUAL_USER])
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    oauth = "org.apache.kafka.common.security.oauthbearer"
    at = {"PLAINTEXT": port, "CONTROLLER": controller, "SASL": sasl, "MUTUAL": mutual}
    settings = {
        "listeners": ",".join(f"{name}://{HOST}:{number}" for name, number in at.items()),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl.plain.sasl.jaas.config": f'{plain} user_{PLAIN_USER}="{SECRETS[PLAIN_USER]}";',
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.sasl.oauthbearer.sasl.jaas.config": f"{oauth}.OAuthBearerLoginModule required;",
        "listener.name.sasl.oauthbearer.sasl.server.callback.handler.class": (
            f"{oauth}.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.sasl.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        "listener.name.sasl.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": tokens.jwks.as_uri(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{user}" for user in ("ANONYMOUS", *SECRETS)),
        "allow.everyone.if.no.acl.found": "false",
    }
    data_dir = folder / "secure-broker"
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.jwks.as_uri()}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_TOOL_OPTIONS", f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {allowed}".strip())
            local_broker.start(data_dir, port, settings=settings)
        broker = SecureBroker(folder, port, sasl, mutual, authority, stranger, tokens, mary)
        broker.add_scram_user(SCRAM_USER)
        yield broker
    finally:
        tokens.close()
        local_broker.stop(data_dir)
        shutil.rmtree(data_dir / "log", ignore_errors=True)
