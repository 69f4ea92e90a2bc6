"""Random changes of a table in PostgreSQL, and what PostgreSQL says that the table had after each of them.

The truth knows nothing of Debezium: after each transaction its rows are selected, and the time is PostgreSQL's own of
the commit (`track_commit_timestamp`). Several writers may change a table at once, each the rows of its own numbers.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.debezium.postgres import Postgres

Row = dict[str, Any]

TABLE = "accounts"
CREATED = f"""
CREATE TABLE {TABLE} (
  id bigint PRIMARY KEY, name text, rate double precision, amount numeric(10, 2), active boolean,
  seen timestamptz, changed timestamp
)"""
DECLARED = """
CREATE TABLE accounts (
  id BIGINT PRIMARY KEY, name STRING, rate DOUBLE, amount DOUBLE, active BOOLEAN, seen TIMESTAMP, changed TIMESTAMP
) WITH (topic = '{accounts}', {options})"""
"""The same in Weir, for connectors with the settings of `connect.connector`."""
_MS = "floor(extract(epoch FROM {} AT TIME ZONE 'UTC') * 1000)::bigint AS {}"
_SELECT = (
    f"SELECT id, name, rate, amount::double precision AS amount, active, {_MS.format('seen', 'seen')}, "
    f"{_MS.format('changed', 'changed')} FROM {TABLE} WHERE id BETWEEN {{}} AND {{}} ORDER BY id"
).replace("seen AT TIME ZONE 'UTC'", "seen")

ROWS_OF_WRITER = 12


@dataclass(frozen=True, slots=True)
class Commit:
    """What a transaction has changed.

    Attributes:
        ms: when PostgreSQL committed it, rounded down.
        changed: by primary key, what the row is now; None if it is gone.
    """

    ms: int
    changed: Mapping[int, Row | None]


@dataclass(slots=True)
class Writer:
    """Changes the rows of some numbers, one transaction after the other.

    Attributes:
        first: the least number of its rows; it has `ROWS_OF_WRITER`.
        commits_of_all: see `Session.transaction`.
        commits: what it has done, in order.
    """

    server: Postgres
    first: int
    rng: random.Random
    commits_of_all: threading.Lock
    commits: list[Commit] = field(default_factory=list)
    _rows: dict[int, Row] = field(default_factory=dict)

    def write(self, stop: threading.Event, pause_s: float) -> None:
        """Make random changes until told to stop."""
        session = self.server.session()
        try:
            while not stop.wait(pause_s):
                self._commit(session, self._transaction())
        finally:
            session.close()

    def commit(self, *changes: str) -> Commit:
        """Make these changes."""
        session = self.server.session()
        try:
            return self._commit(session, changes)
        finally:
            session.close()

    def _commit(self, session: Any, changes: Iterable[str]) -> Commit:
        ms = session.transaction(list(changes), self.commits_of_all)
        found = session.rows(_SELECT.format(self.first, self.first + ROWS_OF_WRITER - 1))
        now = {row["id"]: row for row in found}
        changed = {key: now.get(key) for key in {*now, *self._rows} if now.get(key) != self._rows.get(key)}
        self._rows = now
        self.commits.append(Commit(ms, changed))
        return self.commits[-1]

    def _transaction(self) -> list[str]:
        """One change, or several; of which one row may have several."""
        return [self._change() for _ in range(self.rng.choice([1, 1, 1, 2, 5]))]

    def _number(self) -> int:
        return self.first + self.rng.randrange(ROWS_OF_WRITER)

    def _change(self) -> str:
        rng, number = self.rng, self._number()
        match rng.randrange(8):
            case 0:
                return f"DELETE FROM {TABLE} WHERE id = {number}"
            case 1:  # Debezium deletes the one row and inserts the other
                other = self._number()
                moved = f"UPDATE {TABLE} SET id = {other} WHERE id = {number}"
                return f"{moved} AND NOT EXISTS (SELECT FROM {TABLE} WHERE id = {other})"
            case 2:
                return f"UPDATE {TABLE} SET rate = rate + 1, changed = NULL WHERE id BETWEEN {number} AND {number + 3}"
            case _:
                name = rng.choice(["NULL", "''", "'Å''\"\\n'", f"'n{rng.randrange(99)}'"])
                amount, rate = rng.choice(["NULL", f"{rng.randrange(10**6)}/100.0"]), rng.choice(["0.1", "1e300", "-7"])
                values = f"{number}, {name}, {rate}, {amount}, {rng.choice(['true', 'false', 'NULL'])}, now(), now()"
                names = ("name", "rate", "amount", "active", "seen", "changed")
                again = ", ".join(f"{one} = excluded.{one}" for one in names)
                return f"INSERT INTO {TABLE} VALUES ({values}) ON CONFLICT (id) DO UPDATE SET {again}"


class Writers:
    """Some writers at once, each in a thread of its own."""

    def __init__(self, server: Postgres, seed: int, *, count: int = 2, pause_s: float = 0.02) -> None:
        lock = threading.Lock()
        self.each = [Writer(server, 100 * (n + 1), random.Random(f"{seed} {n}"), lock) for n in range(count)]
        self._stop = threading.Event()
        self._pause_s = pause_s
        self._threads = ThreadPoolExecutor(count)
        self._writing: list[Future[None]] = []
        session = server.session()
        session.run(CREATED)
        session.close()
        self._last = Writer(server, 0, random.Random(0), lock)

    def start(self) -> None:
        """Begin to write."""
        self._writing = [self._threads.submit(one.write, self._stop, self._pause_s) for one in self.each]

    def stop(self) -> None:
        """Stop writing, and wait until all transactions have ended."""
        self._stop.set()
        self._threads.shutdown()
        for one in self._writing:
            one.result()

    def mark(self, number: int) -> Commit:
        """Commit a row that no writer has, so that the topic's watermark passes all that is written before.

        Args:
            number: from 0 on, less than `ROWS_OF_WRITER`.
        """
        time.sleep(0.002)  # so that its time is greater
        return self._last.commit(f"INSERT INTO {TABLE} (id) VALUES ({number})")

    def commits(self) -> list[Commit]:
        """What all have done so far, in the order of the times."""
        every = [commit for one in (*self.each, self._last) for commit in list(one.commits)]
        return sorted(every, key=lambda commit: commit.ms)


def state_at(commits: Iterable[Commit], ms: int) -> dict[int, Row]:
    """The table at the end of a millisecond, by primary key."""
    found: dict[int, Row | None] = {}
    for commit in commits:
        if commit.ms <= ms:
            found |= commit.changed
    return {key: row for key, row in found.items() if row is not None}
