"""Options that commands which run a query share: which query, which group, how much memory, which logs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from schemas.query import Query


class LogFormat(StrEnum):
    """Form of log lines."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Least severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Switch(StrEnum):
    """On or off."""

    OFF = "off"
    ON = "on"


class Preference(StrEnum):
    """The cost that the strategy `auto` minimizes."""

    WORK = "work"
    SILENCE = "silence"
    MEMORY = "memory"


class Adapt(StrEnum):
    """Whether Weir changes the plan when the data change."""

    ON = "on"
    ADVISE = "advise"
    OFF = "off"


QueryArgument = Annotated[
    Path,
    typer.Argument(
        envvar="WEIR_QUERY_FILE",
        metavar="QUERY",
        help="File with CREATE STREAM and INSERT INTO, or the name of a registered query (`weir query`).",
    ),
]

QueryName = Annotated[
    str | None,
    typer.Option(
        "--query",
        envvar="WEIR_QUERY",
        metavar="NAME",
        help="Which query, by its sink topic, if the file has several.",
    ),
]

TableFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="NAME=PATH",
        envvar="WEIR_TABLES",
        help="File of a declared table in place of the one that CREATE TABLE names; once per table. In WEIR_TABLES, "
        "separated by blanks.",
    ),
]

Memory = Annotated[
    str | None,
    typer.Option(
        envvar="WEIR_MEMORY",
        metavar="SIZE",
        help="Memory for tuples and states, such as 64MiB; in a worker, for each task. What exceeds it is spilled to "
        'disk. The results that this leaves pending come later, marked "_phase": "cleanup"; aggregates wait for them. '
        "EXCEPT keeps it in files, and nothing is late. Default: no limit.",
    ),
]

SpillStrategy = Annotated[
    str | None,
    typer.Option(
        "--spill",
        envvar="WEIR_SPILL",
        metavar="STRATEGY",
        help="What is spilled first: bottom-up (joins nearest the sources), local-output (groups that produce the "
        "fewest results of their own join, per byte), global-output (the fewest results of the query, per byte) or "
        "global-output-penalty (the same, per byte of all memory that the group causes in joins above; the default).",
    ),
]

SpillDir = Annotated[
    Path | None,
    typer.Option(
        envvar="WEIR_SPILL_DIR",
        metavar="DIR",
        help="Folder for spilled state. Workers of one machine may share it; a task empties its part when it starts, "
        "since recovery needs Kafka alone. Default: a worker's --state-dir, else a temporary folder.",
    ),
]

MaxSilence = Annotated[
    str,
    typer.Option(
        envvar="WEIR_MAX_SILENCE",
        metavar="DURATION",
        help="With --adapt: the longest pause that a change of plans may cause.",
    ),
]

MaxExtraMemory = Annotated[
    float,
    typer.Option(
        envvar="WEIR_MAX_EXTRA_MEMORY",
        metavar="SHARE",
        min=0.0,
        help="With --adapt: the tuples that a change of plans may hold beside the states, as a share of theirs.",
    ),
]

Prefer = Annotated[
    Preference,
    typer.Option(
        envvar="WEIR_PREFER",
        help="What the choice of a migration strategy minimizes: work, silence (the longest pause) or memory (tuples "
        "held beside the new plan's).",
    ),
]

Group = Annotated[
    str | None,
    typer.Option(
        envvar="WEIR_GROUP",
        metavar="NAME",
        help="Consumer group of all workers of this query; offsets, transactional ids and control topics belong to "
        "it. Default: weir-<sink topic>.",
    ),
]


def _replicas(given: int) -> int:
    if given == 0:
        raise typer.BadParameter("a topic has at least one replica; -1 is the broker's default.")
    return given


Replication = Annotated[
    int,
    typer.Option(
        envvar="WEIR_REPLICATION",
        min=-1,
        callback=_replicas,
        help="Replication factor of topics that are created; -1 is the broker's default.",
    ),
]

WaitForTopics = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        envvar="WEIR_WAIT",
        show_default=False,
        help="Wait for brokers and input topics, or exit with code 1. Default: wait, but exit when Kafka has refused "
        "the password or the TLS handshake for a minute.",
    ),
]

LogForm = Annotated[LogFormat, typer.Option(envvar="WEIR_LOG_FORMAT", help="Form of log lines on standard error.")]

LogLeast = Annotated[LogLevel, typer.Option(envvar="WEIR_LOG_LEVEL", help="Least severity that is logged.")]


def adapt_mode(given: Adapt | None, *, pinned: bool) -> Literal["on", "advise"] | None:
    """Whether to adapt the plan, where the user may have pinned one; None for no."""
    match given:
        case None:
            return None if pinned else "on"
        case Adapt.ON:
            return "on"
        case Adapt.ADVISE:
            return "advise"
        case Adapt.OFF:
            return None


def group_of(query: Query, given: str | None) -> str:
    """The consumer group of a query's workers."""
    return given or f"weir-{query.name}"
