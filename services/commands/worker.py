"""`weir worker`: runs a query as a service on Kafka."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from schemas.durations import parse_duration
from schemas.errors import UsageError
from schemas.sizes import parse_size, unit_hint
from services.commands.options.kafka import with_kafka
from services.commands.options.query import (
    Adapt,
    Group,
    LogForm,
    LogFormat,
    LogLeast,
    LogLevel,
    MaxExtraMemory,
    MaxSilence,
    Memory,
    Prefer,
    Preference,
    QueryArgument,
    QueryName,
    Replication,
    SpillDir,
    SpillStrategy,
    Switch,
    TableFiles,
    WaitForTopics,
    adapt_mode,
    group_of,
)
from services.commands.options.registry import with_registry
from services.commands.page_port import UiPort, page_at
from services.files.query_files import table_paths
from services.formats.registry_access import RegistryAccess
from services.kafka.topics import TopicAdmin
from services.process import memory as memory_use
from services.process.logs import get_log, set_up_logs
from services.process.security import KafkaClients
from services.process.settings import Guarantee, Placement, Start, WorkerSettings
from services.registry.group_registry import find_group
from services.registry.query_registry import find_query, names_file
from services.worker.web import Pages

NEVER = "never"
TUNING = "Tuning"


@with_kafka
@with_registry
def worker(
    query: QueryArgument,
    name: QueryName = None,
    table: TableFiles = None,
    group: Group = None,
    state_dir: Annotated[
        str,
        typer.Option(
            envvar="WEIR_STATE_DIR",
            metavar="DIR",
            help="Folder for snapshots, so that a restart reads little input again; may be shared by workers of one "
            "machine. 'none': no snapshots, windows are read again from Kafka.",
        ),
    ] = ".weir/state",
    http_port: Annotated[
        int,
        typer.Option(
            envvar="WEIR_HTTP_PORT",
            min=0,
            max=65535,
            help="TCP port of /metrics and /healthz; 0 serves none.",
        ),
    ] = 0,
    http_bind: Annotated[
        str,
        typer.Option(
            envvar="WEIR_HTTP_BIND",
            metavar="ADDRESS",
            help="Address that the HTTP ports bind; 0.0.0.0: all of this machine's.",
        ),
    ] = "127.0.0.1",
    ui_port: UiPort = 0,
    guarantee: Annotated[
        Guarantee,
        typer.Option(
            envvar="WEIR_GUARANTEE",
            help="exactly-once: read the sink with isolation.level=read_committed. at-least-once: results are visible "
            "as soon as written; after a crash some come twice.",
        ),
    ] = Guarantee.EXACTLY_ONCE,
    start: Annotated[
        Start,
        typer.Option("--from", envvar="WEIR_FROM", help="Where to begin when the group has no committed offsets."),
    ] = Start.EARLIEST,
    plan: Annotated[
        str | None,
        typer.Option(
            envvar="WEIR_PLAN",
            metavar="PLAN",
            help="Join tree over the aliases, such as '((A B) C)'. Default: chosen from declared statistics.",
        ),
    ] = None,
    placement: Annotated[
        Placement,
        typer.Option(
            envvar="WEIR_PLACEMENT",
            help="fused: all joins of the plan in one task. per-operator: each join in tasks of its own, spread over "
            "the group's workers; intermediate results travel through topics.",
        ),
    ] = Placement.FUSED,
    operator_partitions: Annotated[
        int | None,
        typer.Option(
            envvar="WEIR_OPERATOR_PARTITIONS",
            metavar="TASKS",
            min=1,
            max=64,
            help="With placement per-operator: into how many tasks a join with an equality key is split. Default: as "
            "many as the streams' topics have partitions at most. PARTITION BY decides it itself.",
        ),
    ] = None,
    jit: Annotated[
        Switch,
        typer.Option(
            envvar="WEIR_JIT",
            help="Just-in-time feedback: joins do not produce what no join above them can use now, and produce it when "
            "one can. Results stay the same; it rests where it does not pay. With placement per-operator it cannot be "
            "switched within a group.",
        ),
    ] = Switch.OFF,
    adapt: Annotated[
        Adapt | None,
        typer.Option(
            envvar="WEIR_ADAPT",
            help="Whether Weir changes the plan when rates or selectivities change and that pays: on, advise (it only "
            "reports what it would do; see `weir decisions`) or off. Results stay the same. Default: on, but off with "
            "--plan.",
        ),
    ] = None,
    max_silence: MaxSilence = "100ms",
    max_extra_memory: MaxExtraMemory = 1.0,
    prefer: Prefer = Preference.WORK,
    memory: Memory = None,
    spill: SpillStrategy = None,
    spill_dir: SpillDir = None,
    epoch: Annotated[
        str,
        typer.Option(
            envvar="WEIR_EPOCH",
            metavar="DURATION",
            help="How often results are delivered, in wall-clock time.",
        ),
    ] = "50ms",
    commit: Annotated[
        str,
        typer.Option(
            envvar="WEIR_COMMIT",
            metavar="DURATION",
            help="How often offsets are committed while there is nothing to deliver (at-least-once: always).",
        ),
    ] = "1s",
    snapshot: Annotated[
        str,
        typer.Option(envvar="WEIR_SNAPSHOT", metavar="DURATION", help="How often state is written to --state-dir."),
    ] = "10s",
    idle_timeout: Annotated[
        str,
        typer.Option(
            envvar="WEIR_IDLE_TIMEOUT",
            metavar="DURATION",
            help="Time after which a silent partition no longer holds results back, for streams that declare no "
            "idle_timeout; what it brings later, behind the watermark, is late. 'never': wait for it.",
        ),
    ] = NEVER,
    wait: WaitForTopics = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            envvar="WEIR_ACCEPT_LOSS",
            help="Continue although Kafka's retention has deleted input that is still needed, or an input topic was "
            "made anew. Default: exit with code 1.",
        ),
    ] = False,
    replication: Replication = -1,
    log_format: LogForm = LogFormat.TEXT,
    log_level: LogLeast = LogLevel.INFO,
    max_pending: Annotated[
        int,
        typer.Option(
            envvar="WEIR_MAX_PENDING",
            min=1000,
            metavar="TUPLES",
            rich_help_panel=TUNING,
            help="Tuples that a task buffers for slower partitions before it pauses the faster ones.",
        ),
    ] = 500_000,
    max_ahead: Annotated[
        str,
        typer.Option(
            envvar="WEIR_MAX_AHEAD",
            metavar="DURATION",
            rich_help_panel=TUNING,
            help="How far in event time a partition may run ahead of the watermark before it is paused.",
        ),
    ] = "5m",
    session_timeout: Annotated[
        str,
        typer.Option(
            envvar="WEIR_SESSION_TIMEOUT",
            metavar="DURATION",
            rich_help_panel=TUNING,
            help="Time without a heartbeat after which other workers take over this worker's tasks.",
        ),
    ] = "10s",
    transaction_timeout: Annotated[
        str,
        typer.Option(
            envvar="WEIR_TRANSACTION_TIMEOUT",
            metavar="DURATION",
            rich_help_panel=TUNING,
            help="Time after which the broker aborts the transaction of a silent worker; at most the broker's "
            "transaction.max.timeout.ms.",
        ),
    ] = "1m",
    patience: Annotated[
        str,
        typer.Option(
            envvar="WEIR_PATIENCE",
            metavar="DURATION",
            rich_help_panel=TUNING,
            help="How long a task may have work and commit none of it before /healthz answers 503, and how long Kafka "
            "may refuse the password or the TLS handshake before the worker ends.",
        ),
    ] = "1m",
    *,
    clients: KafkaClients,
    access: RegistryAccess,
) -> None:
    """Run a query on Kafka until stopped: read its streams' topics, write results to its INSERT INTO topic. QUERY may
    also be a registered group: then all its queries run. `weir query register --group` and `drop` add and remove
    queries meanwhile.

    Late tuples go to <sink>.late, records that cannot be decoded to <sink>.dead; missing output topics are created.
    Start more workers with the same group to share a PARTITION BY query's partitions, or with placement per-operator
    its joins, or to stand by.
    SIGTERM and Ctrl-C deliver the open epoch, commit and leave the group. Exit codes: 0 stopped; 2 the query or
    the arguments are wrong; 1 anything else.
    """
    set_up_logs(log_format, log_level)
    # All that can be wrong without Kafka is checked before it is waited for.
    settings = WorkerSettings(
        clients=clients,
        group=group or "",
        state_dir=None if state_dir == "none" else Path(state_dir),
        guarantee=guarantee,
        start=start,
        plan=plan,
        placement=placement,
        operator_partitions=operator_partitions,
        jit=jit is Switch.ON,
        spill_dir=spill_dir,
        epoch_ms=_at_least("--epoch", epoch, 1),
        commit_ms=_at_least("--commit", commit, 1),
        snapshot_ms=_at_least("--snapshot", snapshot, 1),
        idle_timeout_ms=None if idle_timeout == NEVER else _at_least("--idle-timeout", idle_timeout, 1),
        max_pending_tuples=max_pending,
        max_ahead_ms=_at_least("--max-ahead", max_ahead, 1),
        transaction_timeout_ms=_at_least("--transaction-timeout", transaction_timeout, 1000),
        session_timeout_ms=_at_least("--session-timeout", session_timeout, 1000),
        wait=wait,
        patience_ms=_at_least("--patience", patience, 1),
        replication=replication,
        adapt=adapt_mode(adapt, pinned=plan is not None),
    )
    silence_ms = parse_duration(max_silence)
    if memory is not None:
        parse_size(memory)
    with Pages(http_bind, http_port) as pages:
        entry = None
        if not names_file(query):
            TopicAdmin(clients).inputs((), wait, settings.patience_ms, tell=pages.waits_for)
            entry = find_group(clients, str(query))
        if entry is not None and name is not None:
            raise UsageError(f"--query {name}: {entry.name!r} is a group, whose queries all run")
        bound = find_query(query, name, clients, access) if entry is None else entry.query()
        rows = table_paths(bound, query, table or [])

        # Imported here: Faust, Numba and Arrow take seconds, which a wrong argument need not wait for.
        memory_use.choose_arrow_pool()
        from operators.autopilot.autopilot import Limits
        from operators.migration.advise import Goal
        from services.files.tables import read_tables
        from services.formats.decoders import make_decoders
        from services.formats.encoders import Encoders
        from services.spill.budget import budget_of
        from services.worker.worker import Worker

        settings = replace(
            settings,
            group=group_of(bound, group),
            budget=budget_of(memory, spill, spill_dir),
            limits=Limits(Goal(prefer.value, silence_ms / 1000, max_extra_memory)),
        )
        if hint := unit_hint(memory):
            get_log("worker").warning(f"--memory {hint}")
        decoders = make_decoders(bound, query, access)
        tables = read_tables(bound, rows)
        running = Worker(
            bound,
            settings,
            accept_loss,
            tables,
            pages,
            group=entry is not None,
            decoders=decoders,
            encoders=Encoders(access, query.parent if query.exists() else Path()),
        )
        with page_at(http_bind, ui_port, clients, bound, settings.group, of_group=entry is not None):
            running.run()


def _at_least(option: str, text: str, least_ms: int) -> int:
    ms = parse_duration(text)
    if ms < least_ms:
        raise UsageError(f"{option} must be at least {least_ms}ms, got {text!r}")
    return ms
