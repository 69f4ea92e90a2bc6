"""Every way to prove who one is, against a real broker: whole workers, refusals in one line, and secrets kept."""

from __future__ import annotations

import base64
import dataclasses
import os
import random
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.secure_broker import OAUTH_USER, SECRETS, SecureBroker
from tests.services.worker.test_exactly_once import CLOSING, SENSORS, send
from tests.worker_harness import Case, Feed, Reader, WorkerProcess, Workers, assert_exact, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.unmeasured, pytest.mark.deep]

Proof = Callable[[SecureBroker], dict[str, str]]

WAYS = {
    "plain": SecureBroker.plain,
    "scram": SecureBroker.scram,
    "mutual": SecureBroker.mutual,
    "oauth": SecureBroker.oauth,
}


def told(secret: str) -> list[str]:
    """A secret as a program could show it: itself, or in the encoding of HTTP Basic or SASL PLAIN."""
    return [secret, *(base64.b64encode(b":"[:n] + secret.encode()).decode()[4:-4] for n in (0, 1))]


def all_secrets(secured: SecureBroker) -> list[str]:
    """What nobody may ever read, the tokens included."""
    return [shown for secret in (*SECRETS.values(), *secured.tokens.given) for shown in told(secret)]


def kept(secrets: list[str], *texts: str) -> None:
    """No secret is in any of the texts."""
    for text in texts:
        assert text, "nothing was looked through"
        assert [secret for secret in secrets if secret in text] == []


def page(worker: WorkerProcess, path: str) -> str:
    """What a worker's page shows."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{worker.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def arguments(pid: int) -> str:
    """What `ps` shows of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def weir(env: Mapping[str, str], *arguments: str) -> tuple[int, str, str]:
    """Run `weir`: exit code and what it wrote."""
    command = [sys.executable, "-m", "services.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env={**os.environ, **env})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("way", ["plain", "scram", "mutual", "oauth"])
def test_a_worker_joins_topics(way: str, secured: SecureBroker, tmp_path: Path, workers: Workers) -> None:
    """Both client libraries get in, and all results are there once; nothing that the worker shows holds a secret."""
    open_case = Case.make(secured.topics, tmp_path, SENSORS)
    env = WAYS[way](secured)
    worker = workers.start(
        dataclasses.replace(open_case, bootstrap=env["WEIR_BOOTSTRAP"]), "--log-level", "debug", env=env
    )
    feed, rng = Feed(open_case), random.Random(7)
    send(feed, rng, 0, 60)
    worker.wait_running()
    send(feed, rng, 60, 60)
    feed.finish(CLOSING)
    assert_exact(open_case, Reader(open_case.bootstrap, open_case.sink), worker)
    pages = [page(worker, path) for path in ("/metrics", "/healthz")]
    shown = arguments(worker.process.pid)
    assert worker.stop() == 0
    kept(all_secrets(secured), worker.text(), shown, *pages)
    assert "Traceback" not in worker.text()


def _with(env: dict[str, str], **changes: str) -> dict[str, str]:
    """Some variables otherwise; a secret's file gives way to its variable."""
    named = {f"WEIR_{name}": value for name, value in changes.items()}
    return {k: v for k, v in env.items() if k.removesuffix("_FILE") not in named} | named


WRONG = "wr0ng-s3cret-of-somebody"

REFUSED: dict[str, tuple[Proof, str]] = {
    "plain, wrong password": (
        lambda b: _with(b.plain(), KAFKA_SASL_PASSWORD=WRONG),
        r"the broker refuses user 'peter' with PLAIN: Authentication failed: Invalid username or password",
    ),
    "scram, wrong password": (
        lambda b: _with(b.scram(), KAFKA_SASL_PASSWORD=WRONG),
        r"the broker refuses user 'sarah' with SCRAM-SHA-512: Authentication failed .*invalid credentials.*",
    ),
    "unknown mechanism": (
        lambda b: _with(b.plain(), KAFKA_SASL_MECHANISM="SCRAM-SHA-256"),
        r".*SCRAM-SHA-256 mechanism handshake failed: .*supported mechanisms: PLAIN,SCRAM-SHA-512,OAUTHBEARER",
    ),
    "strange authority": (
        lambda b: _with(b.plain(), KAFKA_SSL_CA=str(b.stranger.certificate)),
        r"the certificate of broker 127\.0\.0\.1:\d+ is not trusted: unable to get local issuer certificate "
        r"\(trusted authorities: \S+/stranger\.pem\)",
    ),
    "wrong host name": (
        lambda b: _with(b.plain(), BOOTSTRAP=f"localhost:{b.sasl_port}"),
        r"the certificate of broker localhost:\d+ is not trusted: Hostname mismatch, certificate is not valid for "
        r"'localhost' \(trusted authorities: \S+/authority\.pem\)",
    ),
    "no certificate of our own": (
        lambda b: {k: v for k, v in b.mutual().items() if "_SSL_CERT" not in k and "_SSL_KEY" not in k},
        r"the broker refuses our certificate \(none is given\): .*",
    ),
    "strange certificate of our own": (
        lambda b: b.mutual() | strange_identity(b),
        r"the broker refuses our certificate \S+/nobody\.pem: .*",
    ),
    "oauth, wrong secret": (
        lambda b: _with(b.oauth(), KAFKA_SASL_PASSWORD=WRONG),
        r"the OAuth token endpoint http://127\.0\.0\.1:\d+/token refuses client 'oscar': 401 invalid_client",
    ),
    "oauth, no endpoint": (
        lambda b: _with(b.oauth(), KAFKA_OAUTH_TOKEN_URL="http://127.0.0.1:1/token"),
        r"the OAuth token endpoint http://127\.0\.0\.1:1/token does not answer: .*Connection refused",
    ),
}


def strange_identity(secured: SecureBroker) -> dict[str, str]:
    """A certificate of somebody whom the broker does not trust."""
    certificate, key = secured.stranger.signed("nobody")
    return {"WEIR_KAFKA_SSL_CERTIFICATE": str(certificate), "WEIR_KAFKA_SSL_KEY": str(key)}


def refused(env: Mapping[str, str], why: str, secrets: list[str], tmp_path: Path) -> None:
    """A worker and `weir query list` end with exit code 1 and one line."""
    path = tmp_path / "q.sql"
    path.write_text(SENSORS.format(temperature="t", humidity="h", light="l", sink="out"))
    worker = ["worker", str(path), "--no-wait", "--state-dir", "none", "--log-level", "debug"]
    with ThreadPoolExecutor() as side_by_side:
        answers = list(side_by_side.map(lambda command: weir(env, *command), (worker, ["query", "list"])))
    for code, out, err in answers:
        assert code == 1, err
        assert re.fullmatch(rf"weir: .*{why}.*\n", err), err
        assert out == ""
        kept(secrets, err)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str, secured: SecureBroker, tmp_path: Path) -> None:
    """The line names who or what is refused, and by whom. librdkafka says the same of a strange authority and of a
    wrong host name, and repeats what a token endpoint answers, be it the secret."""
    proof, why = REFUSED[case]
    refused(proof(secured), why, [*all_secrets(secured), *told(WRONG)], tmp_path)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"life_s": -300}, r"the OAuth token endpoint \S+ gave a token that has expired; do the clocks agree\?"),
        ({"audience": "other"}, f"the broker refuses the access token of OAuth client '{OAUTH_USER}': .*not meant"),
    ],
    ids=["expired", "of others"],
)
def test_a_bad_token_is_refused_in_one_line(
    fault: dict[str, Any], why: str, secured: SecureBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka notices that a token has expired, the broker whatever else is wrong with it."""
    for name, value in fault.items():
        monkeypatch.setattr(secured.tokens, name, value)
    refused(secured.oauth(), why, all_secrets(secured), tmp_path)


def test_tokens_are_renewed(secured: SecureBroker, tmp_path: Path, workers: Workers) -> None:
    """A worker outlives many tokens: every client in it takes a new one in time, also while the worker ends.

    confluent-kafka's `oauth_cb` ended a worker that stopped in a segmentation fault.
    """
    open_case = Case.make(secured.topics, tmp_path, SENSORS)
    env = secured.oauth()
    secured.tokens.life_s = 3
    try:
        worker = workers.start(dataclasses.replace(open_case, bootstrap=env["WEIR_BOOTSTRAP"]), env=env)
        feed, rng = Feed(open_case), random.Random(8)
        worker.wait_running()
        for part in range(4):
            send(feed, rng, 50 * part, 50)
            seen = len(secured.tokens.given)
            wait_for(lambda seen=seen: len(secured.tokens.given) > seen, "another token")
        feed.finish(CLOSING)
        assert_exact(open_case, Reader(open_case.bootstrap, open_case.sink), worker)
        assert worker.stop() == 0
    finally:
        secured.tokens.life_s = 300
