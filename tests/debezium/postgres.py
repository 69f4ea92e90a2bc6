"""A PostgreSQL of one test, whose changes can be read from its log (`wal_level=logical`), and sessions with it.

PostgreSQL refuses to run as root, so that root starts it as the user `postgres`, whom the package has made.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from services.broker.background import free_port
from services.broker.settings import HOST
from tests.broker_fixture import wait_until

USER, DATABASE = "postgres", "postgres"
READY_S = 60.0
_DONE = "--done--"


def binaries() -> Path | None:
    """The folder with PostgreSQL's programs, of the newest release that is installed; None if there is none."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    found += sorted((one for one in installed if (one / "initdb").exists()), key=lambda one: float(one.parent.name))
    return found[-1] if found else None


class Postgres:
    """A server with a folder of its own, on a free port.

    Attributes:
        port: where it listens, on loopback.
        password: of its superuser.
    """

    def __init__(self) -> None:
        """Start it and wait until it answers.

        Raises:
            RuntimeError: PostgreSQL is not installed.
            subprocess.CalledProcessError: it does not start.
        """
        programs = binaries()
        if programs is None:
            raise RuntimeError("no initdb in PATH or /usr/lib/postgresql (Debian, Ubuntu: apt-get install postgresql)")
        self.port = free_port()
        self.password = secrets.token_hex()
        # Not pytest's folder, which the other user cannot enter.
        self._folder = Path(tempfile.mkdtemp(prefix="weir-postgres-"))
        secret = self._folder / "password"
        secret.write_text(self.password)
        self._as_user: dict[str, Any] = {"cwd": self._folder, "start_new_session": True}
        if os.geteuid() == 0:
            user = pwd.getpwnam(USER)
            for path in (self._folder, secret):
                os.chown(path, user.pw_uid, user.pw_gid)
            self._as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        data = self._folder / "data"
        made = [programs / "initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        subprocess.run(made, check=True, capture_output=True, **self._as_user)
        settings = {
            "port": self.port,
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "wal_level": "logical",
            "track_commit_timestamp": "on",
            "fsync": "off",
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.log = self._folder / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [programs / "postgres", "-D", data, *given], stdout=log, stderr=log, **self._as_user
            )
        ready = [programs / "pg_isready", "-h", HOST, "-p", str(self.port), "-t", "1"]
        wait_until(
            lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0, "PostgreSQL", READY_S
        )

    def session(self) -> Session:
        """Begin a session."""
        return Session(self)

    def version(self) -> str:
        """Its release."""
        session = self.session()
        (found,) = session.run("SHOW server_version")
        session.close()
        return found

    def close(self) -> None:
        """End it, and remove what it has stored."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Session:
    """A session of psql, one statement after the other."""

    def __init__(self, server: Postgres) -> None:
        command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        command += ["-h", HOST, "-p", str(server.port), "-U", USER, DATABASE]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PGPASSWORD": server.password, "PGTZ": "UTC"},
        )

    def run(self, *statements: str) -> list[str]:
        """Run statements and return the lines that they print.

        Raises:
            RuntimeError: PostgreSQL refuses one.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(";\n".join(statements) + f";\n\\echo {_DONE}\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.strip() == _DONE:
                return lines
            lines.append(line.rstrip("\n"))
        raise RuntimeError(f"psql ended: {lines}")

    def rows(self, select: str) -> list[dict[str, Any]]:
        """The rows of a SELECT."""
        lines = self.run(f"SELECT coalesce(json_agg(found), '[]') FROM ({select}) AS found")
        return list(json.loads("".join(lines)))

    def transaction(self, changes: Sequence[str], one_at_a_time: AbstractContextManager[Any]) -> int:
        """Make changes in one transaction; return when PostgreSQL committed it, in milliseconds.

        Args:
            one_at_a_time: held while it is committed. Of transactions that end at once, the times of the commits and
                their order in PostgreSQL's log may differ.
        """
        (number,) = self.run("BEGIN", *changes, "SELECT pg_current_xact_id()")
        with one_at_a_time:
            self.run("COMMIT")
        when = f"extract(epoch FROM pg_xact_commit_timestamp('{number}'::xid))"
        (line,) = self.run(f"SELECT floor({when} * 1000)::bigint")
        return int(line)

    def close(self) -> None:
        """End it."""
        self._process.communicate("\\q\n")
