"""Mistakes in how to reach a registry are said before anything starts, and never show a password."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

QUERY = (
    "CREATE STREAM o (id BIGINT, at TIMESTAMP) WITH (format = 'avro', timestamp = 'at');"
    "INSERT INTO 'out' SELECT * FROM o O [RANGE 1 HOUR];"
)


@pytest.mark.parametrize(
    ("options", "variables", "reason"),
    [
        ([], {}, "where are their schemas? Name the schema registry with --registry"),
        (["--registry", "localhost:8081"], {}, "--registry is a URL such as http://127.0.0.1:8081"),
        (["--registry", "http://me:secret@r:1"], {}, "without a password; got 'r:1'"),
        (["--registry", "http://r", "--registry-username", "a"], {"WEIR_REGISTRY_TOKEN": "t"}, "not both"),
        (["--registry", "http://r"], {"WEIR_REGISTRY_PASSWORD": "secret"}, "needs its user: --registry-username"),
        (["--registry-username", "a"], {}, "need its address: --registry URL"),
        (["--registry", "http://r", "--registry-key", "k"], {}, "needs its certificate"),
        (["--registry", "http://r", "--registry-ca", "no.pem"], {}, "--registry-ca no.pem cannot be read"),
    ],
)
def test_mistakes(tmp_path: Path, options: list[str], variables: dict[str, str], reason: str) -> None:
    (tmp_path / "q.sql").write_text(QUERY)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_REGISTRY")}
    command = [sys.executable, "-m", "services.cli", "worker", "q.sql", "--http-port", "0"]
    done = subprocess.run(
        [*command, "--bootstrap", "127.0.0.1:1", *options],
        cwd=tmp_path,
        env={**environment, **variables, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
    assert "secret" not in done.stdout + done.stderr
