"""The two workloads of the benchmarks: their queries and their events, the same for the same seed.

Both are natural joins on columns of one name, so that one naive program can answer either:

- **three-way**: A(id, ts, x, y), B(id, ts, x), C(id, ts, y); A.x = B.x and A.y = C.y. With 10,000 events/s in
  each stream, a window of 10 s and 400,000 values, there is a sixteenth of a result per source tuple: this measures
  insertion and probing, not output.
- **clique**: four streams of 1,000 events/s; every two of them share a column of their own with 100 values
  (JIT, section VI). Each tuple meets 100 partners in every other stream, so there are more than 100 intermediate
  results and one result per source tuple: this measures the making of intermediate results.

Events are made for one second of event time at a time, from a generator seeded with (seed, second): a longer
run begins with the events of a shorter one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from schemas.columns import DTYPES, Batch, Column
from schemas.language.program import parse_program
from schemas.query import Query, Type

BEGIN_MS = 1_700_000_000_000
"""Event time of the first event: timestamps have the length that they have in practice."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A query over streams that differ only in their join columns.

    Attributes:
        streams: the join columns by stream; every stream has `id` and `ts` before them.
        rate: events per second of event time, each stream.
        window_ms: the window of all streams.
        values: join columns are uniform in [1, values].
    """

    name: str
    streams: Mapping[str, tuple[str, ...]]
    rate: int
    window_ms: int
    values: int

    @property
    def events_per_second(self) -> int:
        """Events per second of event time, over all streams."""
        return self.rate * len(self.streams)

    @property
    def live_tuples(self) -> int:
        """Source tuples inside the window."""
        return self.events_per_second * self.window_ms // 1000

    @property
    def fill_seconds(self) -> int:
        """Event time until the state reaches its final size: the window is full, memory has been used once."""
        return 2 * -(-self.window_ms // 1000)

    def columns(self, stream: str) -> tuple[str, ...]:
        """All columns of a stream."""
        return ("id", "ts", *self.streams[stream])

    def sql(
        self,
        sink: str | None = None,
        topics: Mapping[str, str] | None = None,
        format: str = "json",
        result_format: str = "json",
    ) -> str:
        """The program.

        Args:
            sink: the topic of an INSERT INTO.
            topics: the topic of each stream; its name when None.
            format: of the records in these topics.
            result_format: of the results.
        """
        lines = []
        for stream in self.streams:
            fields = ", ".join(f"{name} {'TIMESTAMP' if name == 'ts' else 'BIGINT'}" for name in self.columns(stream))
            topic = (topics or {}).get(stream, stream)
            options = f"topic = '{topic}', timestamp = 'ts'" + _format_option(", ", format)
            lines.append(f"CREATE STREAM {stream} ({fields}) WITH ({options});")
        if sink is not None:
            option = _format_option("", result_format)
            lines.append(f"INSERT INTO '{sink}'" + (f" WITH ({option})" if option else ""))
        lines.append("SELECT " + ", ".join(f"{stream}.id AS {stream.lower()}" for stream in self.streams))
        lines.append("FROM " + ", ".join(self.streams) + f" WINDOW RANGE {self.window_ms} MILLISECONDS")
        equal = [
            f"{one}.{column} = {other}.{column}"
            for i, one in enumerate(self.streams)
            for other in list(self.streams)[i + 1 :]
            for column in self.streams[one]
            if column in self.streams[other]
        ]
        lines.append("WHERE " + " AND ".join(equal) + ";")
        return "\n".join(lines) + "\n"

    def query(self) -> Query:
        """The program's query."""
        return parse_program(self.sql()).queries[0]

    def second(self, number: int, seed: int) -> dict[str, Batch]:
        """The events of one second of event time, by stream, ascending by ts; `rate` in each."""
        rng = np.random.default_rng((seed, number))
        ids = np.arange(number * self.rate, (number + 1) * self.rate, dtype=DTYPES[Type.BIGINT])
        ts = BEGIN_MS + ids * 1000 // self.rate
        batches = {}
        for stream, joined in self.streams.items():
            columns = {"id": Column(Type.BIGINT, ids), "ts": Column(Type.TIMESTAMP, ts)}
            for name in joined:
                columns[name] = Column(Type.BIGINT, rng.integers(1, self.values + 1, self.rate))
            batches[stream] = Batch(ts, columns)
        return batches

    def scaled(self, share: float) -> Workload:
        """The same shape with a share of the rate and of the values: to check that the workload runs at all."""
        return replace(self, rate=max(1, int(self.rate * share)), values=max(10, int(self.values * share)))

    def seconds(self, start: int, stop: int, seed: int) -> dict[str, Batch]:
        """The events of seconds start .. stop, by stream."""
        parts = [self.second(number, seed) for number in range(start, stop)]
        return {stream: Batch.concat([part[stream] for part in parts]) for stream in self.streams}


def _format_option(before: str, format: str) -> str:
    """The option that names a format, where it is not the default."""
    return "" if format == "json" else f"{before}format = '{format}'"


def three_way(times: int = 1, *, scale_values: bool = False) -> Workload:
    """The three-way join with `times` the window.

    With the values unchanged, the results per source tuple grow with the square of the window;
    `scale_values` widens their range by the same factor, which keeps the results per source tuple equal.
    """
    return Workload(
        "three-way",
        {"A": ("x", "y"), "B": ("x",), "C": ("y",)},
        rate=10_000,
        window_ms=10_000 * times,
        values=400_000 * (times if scale_values else 1),
    )


def clique() -> Workload:
    """The four-way clique join."""
    return Workload(
        "clique",
        {"A": ("x1", "x2", "x3"), "B": ("x1", "x4", "x5"), "C": ("x2", "x4", "x6"), "D": ("x3", "x5", "x6")},
        rate=1_000,
        window_ms=10_000,
        values=100,
    )
