"""Draws a trial's scenario from a seed: a query, its settings, its data and its faults.

`draw(seed)` returns the same scenario for the same seed and arguments. It draws only what Weir accepts: each kind of
query below has the settings that fit it, according to `ops/docs` and the checks of `services`. Times of faults are
seconds after the first record.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from dataclasses import dataclass, field
from typing import Any

from operators.spill.strategies import STRATEGIES as SPILL_STRATEGIES
from tests.torture.kinds import CLUSTER_FAULTS, FAULTS, events

KINDS = {
    "join": 3,
    "partitioned": 3,
    "placed": 4,
    "migrate": 4,
    "budget": 4,
    "group": 3,
    "group-budget": 2,
    "except": 3,
    "aggregate": 3,
    "rows": 2,
    "at-least-once": 1,
}
"""Kinds of queries and placements, with how often each is drawn."""

STRATEGIES = ("moving-state", "parallel-track", "hybmig", "hybmig-bsc", "jisc", "gms", "gpt", "ghm", "auto")
OF_DIFFERENCE = ("jisc", "moving-state", "gms", "gpt")
OF_DISTRIBUTED = ("moving-state", "hybmig-bsc", "jisc", "jisc", "auto")
SPILLS = tuple(SPILL_STRATEGIES)
ALIASES = "ABCD"
TABLE = "T"
"""The alias of the table in a topic in which the tuples of one stream are looked up."""
COLUMNS = "n BIGINT, k BIGINT, v BIGINT, x DOUBLE, s STRING, at TIMESTAMP"


@dataclass(frozen=True)
class Fault:
    """A fault, or a change that a user requests, `at` seconds after the first record."""

    at: float
    kind: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """One trial.

    Attributes:
        seed: what it was drawn from.
        windows: as written in the query, per stream.
        edges: pairs of streams that an equality joins, with the column on both sides.
        rate: tuples per second of each stream.
        keys: how many values the joined columns have.
        late, bad, big: shares of records that are late or are no tuples; the number of records of `big_bytes`.
        options: of every worker.
        state: "none", or how workers store snapshots: "shared" in one folder, "own" each in its own.
        queries: of a group, each a list of streams with windows; else one query.
        proxied: whether workers reach the broker through a proxy.
        clock: whether workers run under a clock that can be set.
        table: whether the tuples of a stream are looked up in a table in a topic.
        unnests: whether the first stream has a tuple for each element of an array in its records.
        repeats_ms: tuples with equal `v` within this time are dropped as repeats; 0 keeps them.
    """

    seed: int
    kind: str
    streams: int
    topology: str
    edges: tuple[tuple[int, int, str], ...]
    windows: tuple[str, ...]
    window_ms: int
    partitions: int
    partition_by: bool
    seconds: float
    rate: int
    keys: int
    disorder_ms: int
    extra: tuple[str, ...]
    late: float
    bad: float
    nulls: float
    big: int
    big_bytes: int
    workers: int
    options: tuple[str, ...]
    session_s: int
    state: str
    at_least_once: bool
    coordinator: bool
    emit_ms: int
    group: bool
    selects: dict[str, str]
    proxied: bool
    clock: bool
    brokers: int
    faults: tuple[Fault, ...]
    table: bool = False
    repeats_ms: int = 0
    unnests: bool = False

    def to_json(self) -> str:
        """The scenario as JSON, for people and for `from_json`."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Scenario:
        """Read a scenario back."""
        given = json.loads(text)
        given["faults"] = tuple(Fault(**fault) for fault in given["faults"])
        given["edges"] = tuple(tuple(edge) for edge in given["edges"])
        for name in ("windows", "extra", "options"):
            given[name] = tuple(given[name])
        return Scenario(**given)

    @property
    def aliases(self) -> str:
        """One letter per stream."""
        return ALIASES[: self.streams]

    @property
    def inputs(self) -> str:
        """One letter per topic of the input."""
        return self.aliases + TABLE * self.table

    def count(self, alias: str) -> int:
        """How many partitions a stream's topic has at the end."""
        return self.partitions + sum(f.kind == "topic-grows" and f.args["alias"] == alias for f in self.faults)

    def declarations(self, prefix: str) -> str:
        """CREATE STREAM for every stream, and CREATE TABLE for the table."""
        within = f",\n  deduplicate = 'v', deduplicate_within = '{self.repeats_ms} MILLISECONDS'"
        disorder = f"timestamp = 'at', disorder = '{self.disorder_ms} MILLISECONDS'"
        columns = "k BIGINT PRIMARY KEY, n BIGINT, w BIGINT, at TIMESTAMP"
        table = f"CREATE TABLE st ({columns})\n  WITH (topic = '{prefix}.{TABLE}', "
        arrays = {ALIASES[0]: ", items ARRAY<ROW(w BIGINT)>"} if self.unnests else {}
        return "".join(
            f"CREATE STREAM s{alias.lower()} ({COLUMNS}{arrays.get(alias, '')})\n"
            f"  WITH (topic = '{prefix}.{alias}', format = 'json', {disorder}{within if self.repeats_ms else ''});\n"
            for alias in self.aliases
        ) + (f"{table}{disorder});\n" if self.table else "")

    def text(self, prefix: str) -> str:
        """The query file, or the first one of a group; topics begin with `prefix`."""
        selects = {name: text for name, text in self.selects.items() if name.startswith("q")}
        return self.declarations(prefix) + "".join(
            f"INSERT INTO '{prefix}.{name}'\n{select};\n" for name, select in selects.items()
        )


def draw(seed: int, *, only: str = "", brokers: int = 1, seconds: float = 10.0) -> Scenario:
    """The scenario of a seed; `only` restricts it to one kind."""
    rng = random.Random(f"{seed}/{only}/{brokers}")
    kind = only or rng.choices(list(KINDS), list(KINDS.values()))[0]
    base = kind
    if kind == "at-least-once":
        base = rng.choice(["join", "partitioned", "except", "aggregate", "placed"])
    group = base.startswith("group")
    streams = 2 if base == "except" and rng.random() < 0.5 else rng.choice([2, 3, 3, 4])
    if base in ("migrate", "placed"):
        streams = max(streams, 3) if base == "migrate" else streams
    topology = rng.choice(["chain", "star", "clique"])
    often = base in ("placed", "migrate", "budget", "aggregate")
    partition_by = base == "partitioned" or ((often or group) and rng.random() < 0.3)
    edges = _edges(rng, streams, topology, one_column=partition_by or topology == "clique" or base == "except")
    partitions = rng.choice([1, 2, 3]) if not partition_by else rng.choice([2, 3, 4])
    window_ms = rng.choice([500, 1000, 1500, 2500])
    windows = [f"RANGE {rng.choice([window_ms, window_ms, window_ms // 2])} MILLISECONDS" for _ in range(streams)]
    windows[0] = f"RANGE {window_ms} MILLISECONDS"
    if base == "rows":
        for number in rng.sample(range(streams), rng.randint(1, streams)):
            windows[number] = f"ROWS {rng.choice([1, 5, 20, 60])}"
    rate = rng.choice([40, 80, 120, 200]) if streams < 4 else rng.choice([40, 60, 100])
    matches = rng.uniform(0.6, 2.0) if streams < 4 else rng.uniform(0.5, 1.3)
    keys = max(2, round(rate * 2 * window_ms / 1000 / matches))
    extra = _extra(rng, streams, base)
    options: list[str] = []
    session_s = rng.choice([3, 3, 6])
    options += ["--session-timeout", f"{session_s}s", "--transaction-timeout", rng.choice(["10s", "20s"])]
    options += ["--snapshot", rng.choice(["500ms", "1s", "3s"])]
    options += ["--epoch", rng.choice(["20ms", "50ms", "50ms", "200ms"])]
    if rng.random() < 0.15:
        options += ["--max-ahead", rng.choice(["500ms", "2s"]), "--max-pending", "1000"]
    if rng.random() < 0.3:
        options += ["--commit", rng.choice(["100ms", "400ms"])]
    at_least_once = kind == "at-least-once"
    if at_least_once:
        options += ["--guarantee", "at-least-once"]
    placed = base == "placed" or (base in ("migrate", "rows", "except", "aggregate") and rng.random() < 0.25)
    plans = _plans(rng, ALIASES[:streams], edges)
    if not group and base not in ("except",) and rng.random() < 0.5:
        options += ["--plan", rng.choice(plans)]
    if placed:
        options += ["--placement", "per-operator"]
        if not partition_by:
            options += ["--operator-partitions", str(rng.choice([1, 2, 3]))]
    jit = rng.random() < 0.35
    if jit:
        options += ["--jit", "on"]
    may_spill = base in ("rows", "migrate", "placed", "except", "aggregate")
    budget = base in ("budget", "group-budget") or (may_spill and rng.random() < 0.2)
    if budget:
        options += ["--memory", rng.choice(["1KiB", "64KiB", "128KiB", "256KiB"])]
        if not group:
            options += ["--spill", rng.choice(SPILLS)]
    own = random.Random(f"{seed}/{kind}/tables and repeats")
    table = own.random() < 0.3
    repeats_ms = own.choice([0, 0, 0, window_ms // 2, 2 * window_ms])
    unnests = own.random() < 0.2
    selects = _selects(rng, base, streams, windows, edges, extra, partition_by, window_ms, table)
    if unnests:
        selects = {name: _unnested(select, aggregates=base == "aggregate") for name, select in selects.items()}
    coordinator = base == "migrate" or (base in ("except", "aggregate", "rows") and rng.random() < 0.25)
    migrates = coordinator and (base != "except" or streams > 2)
    proxied, clock = rng.random() < 0.5, rng.random() < 0.2
    workers = rng.choice([1, 1, 2, 3]) if not placed else rng.choice([1, 2, 3])
    state = rng.choice(["own", "own", "shared", "none"])
    strategies = OF_DIFFERENCE if base == "except" else STRATEGIES
    if placed:
        strategies = ("moving-state", "auto") if base == "except" else OF_DISTRIBUTED
    wanted = _faults(
        rng, seconds, brokers, workers, session_s, state, proxied, clock,
        plans=plans if migrates else [],
        strategies=strategies,
        selects=list(selects) if group else [],
        retention=base not in ("rows",),
        coordinator=coordinator,
        budget=budget,
        grows="" if partition_by or placed else ALIASES[:streams],
    )  # fmt: skip
    big = rng.choice([0, 0, 0, 1, 3])
    return Scenario(
        seed=seed,
        kind=kind,
        streams=streams,
        topology=topology,
        edges=edges,
        windows=tuple(windows),
        window_ms=window_ms,
        partitions=partitions,
        partition_by=partition_by,
        seconds=seconds,
        rate=rate,
        keys=keys,
        disorder_ms=rng.choice([50, 200, 500]),
        extra=extra,
        late=rng.choice([0.0, 0.01, 0.04]),
        bad=rng.choice([0.0, 0.01, 0.05]),
        nulls=rng.choice([0.0, 0.03, 0.1]),
        big=big,
        big_bytes=rng.choice([200_000, 2_000_000, 10_000_000]),
        workers=workers,
        options=tuple(options),
        session_s=session_s,
        state=state,
        at_least_once=at_least_once,
        coordinator=coordinator,
        emit_ms=0,
        group=group,
        selects=selects,
        proxied=proxied,
        clock=clock,
        brokers=brokers,
        faults=tuple(wanted),
        table=table,
        repeats_ms=repeats_ms,
        unnests=unnests,
    )


def _edges(rng: random.Random, streams: int, topology: str, *, one_column: bool) -> tuple[tuple[int, int, str], ...]:
    """Which streams are joined, and on which columns; every stream has an edge to a stream before it."""
    match topology:
        case "chain":
            pairs = [(n - 1, n) for n in range(1, streams)]
        case "star":
            pairs = [(0, n) for n in range(1, streams)]
        case _:
            pairs = list(itertools.combinations(range(streams), 2))
    return tuple((a, b, "k" if one_column else rng.choice("kv")) for a, b in pairs)


def _extra(rng: random.Random, streams: int, base: str) -> tuple[str, ...]:
    """Predicates in addition to the equalities."""
    if base == "except":
        return ("A.v <> 1",) if rng.random() < 0.3 else ()
    last = ALIASES[streams - 1]
    some = [f"A.x > {last}.x", "A.v <> 1", f"{last}.s LIKE 'a%'", f"A.v + {last}.v < 900", f"{last}.x IS NOT NULL"]
    return tuple(rng.sample(some, rng.choice([0, 0, 1, 2])))


def _plans(rng: random.Random, aliases: str, edges: tuple[tuple[int, int, str], ...]) -> list[str]:
    """Some join trees without cross products."""
    joined = {frozenset((aliases[a], aliases[b])) for a, b, _ in edges}

    def tree(parts: list[tuple[str, frozenset[str]]]) -> str:
        while len(parts) > 1:
            able = [
                (p, q)
                for p, q in itertools.permutations(parts, 2)
                if any(frozenset((x, y)) in joined for x in p[1] for y in q[1])
            ]
            left, right = rng.choice(able)
            parts = [part for part in parts if part not in (left, right)]
            parts.append((f"({left[0]} {right[0]})", left[1] | right[1]))
        return parts[0][0]

    return list(dict.fromkeys(tree([(alias, frozenset(alias)) for alias in aliases]) for _ in range(8)))


def _selects(
    rng: random.Random,
    base: str,
    streams: int,
    windows: list[str],
    edges: tuple[tuple[int, int, str], ...],
    extra: tuple[str, ...],
    partition_by: bool,
    window_ms: int,
    table: bool,
) -> dict[str, str]:
    """SELECT statements by the name of their sink; those of a group whose names begin with `r` are registered later."""
    aliases = ALIASES[:streams]
    if base == "except":
        return {"q": _difference(rng, windows, extra, table)}
    if base.startswith("group"):
        return _group_selects(rng, streams, window_ms, edges, partition_by, table)
    froms = [f"s{a.lower()} {a} [{window}]" for a, window in zip(aliases, windows, strict=True)]
    conditions = [f"{aliases[a]}.{c} = {aliases[b]}.{c}" for a, b, c in edges] + list(extra)
    if table:
        _look_up(rng, "A", froms, conditions)
    rng.shuffle(conditions)
    where = f"FROM {', '.join(froms)} WHERE {' AND '.join(conditions)}"
    ends = f" PARTITION BY {', '.join(f'{a}.k' for a in aliases + TABLE * table)}" if partition_by else ""
    if base == "aggregate":
        last = aliases[-1]
        by = "A.k" if partition_by else rng.choice(["A.k", "A.s", "B.v"])
        found = rng.sample(
            [f"SUM({last}.x) AS sum", "MIN(A.n) AS least", f"MAX({last}.v) AS most", "AVG(A.x) AS mean",
             "MEDIAN(A.v) AS middle", f"COUNT({last}.s) AS texts"],
            rng.randint(1, 3),
        )  # fmt: skip
        found += [f"SUM({TABLE}.w) AS looked_up"] * table
        every = rng.choice([100, 250, 700])
        listed = ", ".join([f"{by} AS grouped", "COUNT(*) AS results", *found])
        return {"q": f"SELECT {listed} {where} GROUP BY {by} EMIT EVERY {every} MILLISECONDS{ends}"}
    listed = ", ".join(
        [f"{a}.n AS {a.lower()}" for a in aliases]
        + rng.choice([[], ["A.s AS s", "A.x AS x"]])
        + [f"{TABLE}.w AS w", f"{TABLE}._ts AS since"] * table
    )
    return {"q": f"SELECT {listed} {where}{ends}"}


def _unnested(select: str, *, aggregates: bool) -> str:
    """A statement whose first stream has a tuple for each element of its array."""
    listed, _, rest = select.partition(" FROM ")
    values = "" if aggregates else ", I.w AS item, I._ordinal AS place"
    return f"{listed}{values} FROM {rest.replace(']', '] CROSS JOIN UNNEST(A.items) AS I', 1)}"


def _look_up(rng: random.Random, alias: str, froms: list[str], conditions: list[str]) -> None:
    """Look the tuples of an alias up in the table; those that find no row are kept or not.

    Args:
        froms: a source for each alias.
    """
    version, equal = f"st FOR SYSTEM_TIME AS OF {alias}._ts AS {TABLE}", f"{TABLE}.k = {alias}.k"
    if rng.random() < 0.5:
        froms[ALIASES.index(alias)] += f" LEFT JOIN {version} ON {equal}"
    else:
        froms.append(version)
        conditions.append(equal)


def _difference(rng: random.Random, windows: list[str], extra: tuple[str, ...], table: bool) -> str:
    """A set difference. With the table, tuples of its first stream are looked up, or of one that is subtracted."""
    of = rng.choice(["A", *ALIASES[: len(windows)]]) if table else ""
    froms, where = [f"sa A [{windows[0]}]"], list(extra)
    if of == "A":
        _look_up(rng, of, froms, where)
        where += rng.choice([[], [f"{TABLE}.w < 80"]])
    elif of:
        froms.append(f"st FOR SYSTEM_TIME AS OF {of}._ts AS {TABLE}")
    parts = []
    for alias, window in zip(ALIASES[1:], windows[1:], strict=False):
        on = [f"A.k = {alias}.k", *rng.choice([[], [], [f"A.x > {alias}.x"]])]
        if alias == of:
            on += [f"{TABLE}.k = {alias}.k", *rng.choice([[], [f"{TABLE}.w < 50"]])]
        elif of == "A":
            on += rng.choice([[], [], [f"{TABLE}.w > {alias}.v"]])
        parts.append(f"EXCEPT s{alias.lower()} {alias} [{window}] ON {' AND '.join(on)}")
    listed = ["A.n AS a", "A.k AS k"] + [f"{TABLE}.w AS w", f"{TABLE}._ts AS since"] * (of == "A")
    filters = f" WHERE {' AND '.join(where)}" if where else ""
    return f"SELECT {', '.join(listed)} FROM {', '.join(froms)}{filters} {' '.join(parts)}"


def _group_selects(
    rng: random.Random,
    streams: int,
    window_ms: int,
    edges: tuple[tuple[int, int, str], ...],
    partition_by: bool,
    table: bool,
) -> dict[str, str]:
    """A first file that reads all inputs, and queries that are registered later."""
    found = {}
    for name in ["q0", "q1", "q2", *(f"r{n}" for n in range(rng.randint(1, 4)))]:
        count = streams if name == "q0" else rng.randint(2, streams)
        used = [edge for edge in edges if edge[1] < count]
        froms = [
            f"s{a.lower()} {a} [" + (
                f"ROWS {rng.choice([5, 20])}" if rng.random() < 0.1 else
                f"RANGE {rng.choice([window_ms, window_ms // 2, window_ms * 2])} MILLISECONDS"
            ) + "]"
            for a in ALIASES[:count]
        ]  # fmt: skip
        conditions = [f"{ALIASES[a]}.{c} = {ALIASES[b]}.{c}" for a, b, c in used]
        conditions += rng.choice([[], [f"A.x > {rng.choice([0, 50])}"], [f"A.v < {ALIASES[count - 1]}.v"]])
        listed = [f"{a}.n AS {a.lower()}" for a in ALIASES[:count]]
        looks_up = table and (name == "q0" or rng.random() < 0.6)
        if looks_up:
            of = rng.choice(["A", *ALIASES[:count]])
            _look_up(rng, of, froms, conditions)
            conditions += rng.choice([[], [f"{TABLE}.w < {rng.choice([50, 80])}"], [f"{TABLE}.w > A.v"]])
            listed += rng.choice([[f"{TABLE}.w AS w", f"{TABLE}._ts AS since"], [f"{TABLE}.n AS t"], []])
        keys = [f"{a}.k" for a in ALIASES[:count] + TABLE * looks_up]
        ends = f" PARTITION BY {', '.join(keys)}" if partition_by else ""
        where = f"FROM {', '.join(froms)} WHERE {' AND '.join(conditions)}"
        found[name] = f"SELECT {', '.join(listed)} {where}{ends}"
    return found


def _faults(
    rng: random.Random,
    seconds: float,
    brokers: int,
    workers: int,
    session_s: int,
    state: str,
    proxied: bool,
    clock: bool,
    *,
    plans: list[str],
    strategies: tuple[str, ...],
    selects: list[str],
    retention: bool,
    coordinator: bool,
    budget: bool,
    grows: str,
) -> list[Fault]:
    """Several faults, and changes that users request, at random times."""
    able = dict(FAULTS if brokers == 1 else CLUSTER_FAULTS)
    for name, holds in (
        ("state-lost", state == "own"),
        ("worker-disk-full", state == "own" or budget),
        ("worker-clock", clock),
        ("coordinator-kill", coordinator),
        ("retention", retention),
        ("topic-grows", bool(grows)),
    ):
        if not holds:
            able.pop(name, None)
    if not proxied:
        able = {name: weight for name, weight in able.items() if not name.startswith("net-")}
    found = []
    for _ in range(rng.randint(2, 4)):
        kind = rng.choices(list(able), list(able.values()))[0]
        at = round(rng.uniform(0.5, seconds), 2)
        args = events(rng, kind, workers, session_s, brokers)
        if kind == "topic-grows":
            args["alias"] = rng.choice(grows)
        found.append(Fault(at, kind, args))
    if plans:
        for _ in range(rng.randint(1, 3)):
            at = round(rng.uniform(0.5, 0.8 * seconds), 2)
            found.append(Fault(at, "migrate", {"plan": rng.choice(plans), "strategy": rng.choice(strategies)}))
    for name in selects:
        if name.startswith("r"):
            at = round(rng.uniform(0.5, 0.9 * seconds), 2)
            found.append(Fault(at, "register", {"names": [name], "from_now": rng.random() < 0.3}))
            if rng.random() < 0.4:
                found.append(Fault(round(rng.uniform(at, seconds), 2), "drop", {"name": name}))
    if selects and rng.random() < 0.5:
        found.append(Fault(round(rng.uniform(0.3, 1) * seconds, 2), "drop", {"name": "q1"}))
    for _ in range(rng.choice([0, 1, 3]) if selects else 0):
        at = round(rng.uniform(0.2, 0.9) * seconds, 2)
        sink = rng.choice(["q1", "q2"])
        # A query that is registered with the same meaning again stays as it is.
        by = rng.choice([name for name in selects if name != sink])
        found.append(Fault(at, "replace", {"sink": sink, "by": by, "from_now": rng.random() < 0.3}))
    return sorted(found, key=lambda fault: fault.at)
