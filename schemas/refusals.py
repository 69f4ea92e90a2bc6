"""The one table of what cannot be combined: which setting a feature excludes, why, and what to do instead.

A setting is what the user asks for beside the query: an executor, a placement, a budget. A feature is a property of the
query. `check` refuses a combination before anything runs; the command line, the workers and the engine call it.
`matrix` shows the table in the manual (`ops/docs/combinations.md`, made by `python -m services.reference`).

Refusals of another kind are not here: a wrong plan, an unknown name, an option without effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from schemas.errors import UsageError
from schemas.query import Query


class Feature(StrEnum):
    """A property of a query."""

    EXCEPT = "EXCEPT"
    AGGREGATES = "aggregates"
    ROWS = "[ROWS n]"
    ROWS_AGGREGATES = "aggregates over [ROWS n]"
    UNBOUNDED = "[UNBOUNDED]"
    LOOKUPS = "tables in topics"


DEFERRED_CLEANUP = "--cleanup none or spark"
PER_OPERATOR = "--placement per-operator"
GROUP = "a group of queries"
PLAN = "--plan"
SHARED = "a shared operator"
"""The operator in which a group of queries is executed together."""


def executor(name: str) -> str:
    """The setting of an executor; `juggler` is also the shared operator of a single query."""
    return f"--executor {name}"


def migration(strategy: str) -> str:
    """The setting of a plan change by a strategy."""
    return f"a plan change by {strategy}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A combination that is refused.

    Attributes:
        setting: what is asked for.
        excluded: the feature, or the other setting, that it does not go with.
        reason: why not; completes "SETTING does not go with EXCLUDED: ...".
        instead: what to do instead, as a request.
    """

    setting: str
    excluded: str
    reason: str
    instead: str


def _table() -> Iterator[Refusal]:
    for name in ("mjoin", "eddy", "stairs", "juggler"):
        yield Refusal(
            executor(name), Feature.EXCEPT, "it joins, and EXCEPT subtracts", "omit the executor, or give xjoin"
        )
    yield Refusal(executor("juggler"), Feature.ROWS, "it does not count tuples", "give another executor")
    yield Refusal(
        SHARED, Feature.ROWS_AGGREGATES, "the operator does not count the tuples of single queries", "run it standalone"
    )
    yield Refusal(SHARED, Feature.EXCEPT, "the operator joins, and EXCEPT subtracts", "run it standalone")
    yield Refusal(
        DEFERRED_CLEANUP,
        Feature.AGGREGATES,
        "an aggregate's values at an instant need all earlier results",
        "use --cleanup local",
    )
    yield from (
        Refusal(GROUP, excluded, reason, instead)
        for excluded, reason, instead in (
            (PLAN, "the queries of a group share an operator that has no join order", "omit --plan"),
            (
                PER_OPERATOR,
                "the queries of a group share one operator, so there are no joins to run as tasks of their own",
                "give the queries PARTITION BY, and the operator has a task per partition",
            ),
        )
    )
    by_lineage = "it tells results by the lineage of their components, and a change of a set difference has none"
    lagging = "it lets the new plan lag behind the streams' stores, which by then have forgotten what has ended"
    for strategy in ("parallel-track", "hybmig", "hybmig-bsc", "ghm"):
        reason = lagging if strategy == "ghm" else by_lineage
        yield Refusal(migration(strategy), Feature.EXCEPT, reason, _OTHER_STRATEGY)
    for strategy in ("parallel-track", "hybmig", "gpt"):
        reason = "it ends when all old tuples have left their windows"
        yield Refusal(migration(strategy), Feature.UNBOUNDED, reason, _OTHER_STRATEGY)
    for strategy in ("auto", "moving-state", "parallel-track", "hybmig", "hybmig-bsc", "jisc"):
        reason = "the executor is a black box to it"
        yield Refusal(migration(strategy), executor("juggler"), reason, _OTHER_STRATEGY)
    for strategy in _OF_ONE_TASK:
        # Between tasks the log is what plans have in common. GMS computes the new plan's states from it at the cut, and
        # GHM beside the old plan. The others let both plans run until the new one has seen a whole window of input.
        same = "moving-state" if strategy == "gms" else "hybmig-bsc"
        longer = "" if strategy in ("gms", "ghm") else ", but take a window's time"
        reason = f"two plans in tasks of their own share no states, so it would do what {same} does{longer}"
        yield Refusal(migration(strategy), PER_OPERATOR, reason, f"use {same}")


_OTHER_STRATEGY = "use another strategy"

_OF_ONE_TASK = ("parallel-track", "hybmig", "gms", "gpt", "ghm")
"""The strategies that two plans in tasks of their own cannot use."""

REFUSALS: Mapping[tuple[str, str], Refusal] = {(one.setting, one.excluded): one for one in _table()}


WAYS: Mapping[str, tuple[str, ...]] = {
    "one task": (),
    "a task per operator": (PER_OPERATOR,),
    "a group of queries": (GROUP,),
}
"""The ways to run queries, with the settings that ask for each."""

OFFERS: Mapping[str, tuple[str, ...]] = {
    "`[ROWS n]`": (Feature.ROWS,),
    "tables": (),
    "tables in topics": (Feature.LOOKUPS,),
    "`EXCEPT`": (Feature.EXCEPT,),
    "`UNNEST`": (),
    "aggregates": (Feature.AGGREGATES, Feature.ROWS_AGGREGATES),
    "idle timeouts": (),
    "at least once": (),
    "`--memory`": (),
    "`--jit`": (),
    "plan changes": (
        PLAN,
        *(migration(name) for name in ("auto", "moving-state", *_OF_ONE_TASK, "hybmig-bsc", "jisc")),
    ),
    "`PARTITION BY`": (),
    "per operator": (PER_OPERATOR,),
}
"""What each way may offer, with the features and settings that may be refused there; none where nothing is."""


def overview() -> list[str]:
    """The ways to run queries against what they offer, as a Markdown matrix: yes, no, or what of it is not offered."""
    lines = [f"| | {' | '.join(OFFERS)} |", f"| --- |{' --- |' * len(OFFERS)}"]
    for way, settings in WAYS.items():
        cells = []
        for offered in OFFERS.values():
            names = [(a, b) for a in settings for b in offered]
            refused_here = [b for a, b in names if (a, b) in REFUSALS or (b, a) in REFUSALS]
            some = [name.removeprefix(migration("")) for name in refused_here if name.startswith(migration(""))]
            cells.append(f"not by {', '.join(some)}" if some else "no" if refused_here else "yes")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def matrix(*, of_features: bool) -> list[str]:
    """The table as a Markdown matrix: a row per setting, a column per feature, or per other setting, that some row
    excludes."""
    shown = [one for one in REFUSALS.values() if isinstance(one.excluded, Feature) == of_features]
    rows = list(dict.fromkeys(one.setting for one in shown))
    columns = list(dict.fromkeys(one.excluded for one in shown))
    lines = [f"| | {' | '.join(map(_code, columns))} |", f"| --- |{' --- |' * len(columns)}"]
    for row in rows:
        cells = ("no" if (row, column) in REFUSALS else "" for column in columns)
        lines.append(f"| {_code(row)} | {' | '.join(cells)} |")
    return lines


def reasons() -> list[str]:
    """The reasons as a Markdown table; settings with the same reason are in one row."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in REFUSALS.values():
        alike.setdefault((one.excluded, one.reason, one.instead), []).append(one.setting)
    lines = ["| what | does not go with | because | instead |", "| --- | --- | --- | --- |"]
    for (excluded, reason, instead), settings in alike.items():
        lines.append(f"| {', '.join(map(_code, settings))} | {_code(excluded)} | {reason} | {instead} |")
    return lines


def _code(name: str) -> str:
    return f"`{name}`" if name.startswith(("-", "[")) or name == Feature.EXCEPT else name


def features(query: Query) -> dict[str, str]:
    """The features of a query that some setting excludes, each with the words that name it in this query."""
    found: dict[str, str] = {}
    if query.subtracted:
        found[Feature.EXCEPT] = "EXCEPT"
    if query.aggregation is not None:
        found[Feature.AGGREGATES] = "aggregates"
    for source in query.sources:
        if source.window.kind == "ROWS":
            found.setdefault(Feature.ROWS, f"[ROWS n] of {source.alias}")
        if source.endless:
            found.setdefault(Feature.UNBOUNDED, f"[UNBOUNDED] of {source.alias}")
    for lookup in query.lookups:
        found.setdefault(Feature.LOOKUPS, f"{lookup.table} in a topic")
    if Feature.ROWS in found and Feature.AGGREGATES in found:
        found[Feature.ROWS_AGGREGATES] = f"aggregates over {found[Feature.ROWS]}"
    return found


def refused(query: Query | None, settings: Iterable[str]) -> Iterator[tuple[Refusal, str]]:
    """The refusals of a query's features and of the settings among each other, each with the excluded thing's name."""
    given = dict.fromkeys(settings)
    excluded = chain(() if query is None else features(query).items(), ((one, one) for one in given))
    for thing, name in excluded:
        for setting in given:
            if (refusal := REFUSALS.get((setting, thing))) is not None:
                yield refusal, name


def objection(query: Query | None, *settings: str) -> str:
    """Why a query cannot have these settings, or the settings each other, and what to do instead; empty if it can.

    Args:
        query: None to look at the settings alone.
        settings: of this module.
    """
    for refusal, name in refused(query, settings):
        return f"{refusal.setting} does not go with {name}: {refusal.reason}; {refusal.instead}"
    return ""


def check(query: Query | None, *settings: str) -> None:
    """Refuse what `objection` objects to.

    Raises:
        UsageError: the objection.
    """
    if why := objection(query, *settings):
        raise UsageError(why)
