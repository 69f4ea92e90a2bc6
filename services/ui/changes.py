"""Changes a running query, or the queries of a group, for a page that may do so: `plan_changes`, `group_changes`.

They do what `weir migrate`, `weir query register --group` and `weir query drop` do, and answer in a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from operators.migration.strategies import check_strategy
from operators.plan.plan import check_plan, parse_plan
from schemas.errors import UsageError
from schemas.query import Query
from schemas.timestamps import format_progress
from services.control.plan_requests import PlanRequest
from services.process.security import KafkaClients
from services.process.settings import EXECUTOR
from services.registry.group_registration import register_in_group
from services.registry.group_registry import drop_from_group, find_group
from services.ui.server import Answer

AGREE_MS = 10_000
"""How long the tasks may take to agree on a plan."""

Given = Mapping[str, str]


def plan_changes(clients: KafkaClients, query: Query, group: str) -> dict[str, Answer]:
    """Return what changes the plan of a query.

    Args:
        group: the consumer group of its workers.
    """
    return {"migrate": partial(_migrate, clients, query, group)}


def group_changes(clients: KafkaClients, name: str, replication: int = -1) -> dict[str, Answer]:
    """Return what adds queries to a registered group, and what drops them."""
    return {"register": partial(_register, clients, name, replication), "drop": partial(_drop, clients, name)}


def _migrate(clients: KafkaClients, query: Query, group: str, given: Given) -> dict[str, str]:
    tree, strategy = parse_plan(given.get("plan", ""), query), given.get("strategy") or "auto"
    check_plan(tree, query)
    check_strategy(strategy, EXECUTOR, query)
    request = PlanRequest(query, clients, group, lambda progress: None)
    progress = request.run(str(tree), strategy, prefer="work", at=None, timeout_ms=AGREE_MS, wait=False)
    change = progress.change
    assert change is not None
    return {"said": f"Plan {change.version}: {change.plan} by {change.strategy}, from {format_progress(change.cut)} on"}


def _register(clients: KafkaClients, name: str, replication: int, given: Given) -> dict[str, str]:
    text, from_now = given.get("text", ""), given.get("from_now") == "yes"
    added = register_in_group(clients, name, text, None, from_now=from_now, replication=replication)
    return {"said": f"Registered: {', '.join(added) or 'nothing new'}"}


def _drop(clients: KafkaClients, name: str, given: Given) -> dict[str, str]:
    entry, query = find_group(clients, name), given.get("query", "")
    if entry is None or not query:
        raise UsageError(f"no group {name!r} is registered" if entry is None else "which query?")
    drop_from_group(clients, entry, query)
    return {"said": f"Dropped {query}"}
