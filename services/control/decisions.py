"""The decisions topic of a query: which changes of plans were weighed, and what came of them.

`read_decisions` returns them for `weir decisions`, and for the task that decides when it starts; that task publishes
them (`services.program.leader`).
"""

from __future__ import annotations

from dataclasses import asdict

from operators.autopilot.adaptation import Adaptation
from operators.autopilot.autopilot import Autopilot, History
from operators.autopilot.rule import Account
from operators.plan.plan import Plan, parse_plan
from schemas.errors import StateError, UsageError
from schemas.messages.control import Decision, decode_control
from schemas.query import Query
from services.control.barrier import View
from services.kafka.readback import read_to_end
from services.kafka.topics import ControlTopics
from services.process.logs import Log
from services.process.security import KafkaClients


def decision(query: str, number: int, autopilot: Autopilot) -> Decision:
    """The message about a decision."""
    return Decision(
        query=query,
        number=number,
        adaptation=autopilot.decisions[number].document(),
        account=asdict(autopilot.account),
        first_plan=str(autopilot.first),
    )


def read_decisions(clients: KafkaClients, group: str) -> dict[int, Decision]:
    """All decisions by number, the oldest first. Messages of other programs are passed over.

    Raises:
        BrokerError: Kafka does not answer, or the topic does not exist.
        NewerFormatError: a newer Weir has written here.
    """
    topic = ControlTopics.of(group).decisions
    found: dict[int, Decision] = {}
    for offset, message in read_to_end(clients, (topic, 0)):
        try:
            decoded = decode_control(message.value(), f"{topic}[0]@{offset}")
        except StateError:
            continue
        if isinstance(decoded, Decision):
            found[decoded.number] = decoded
    return dict(sorted(found.items()))


def adaptation_of(message: Decision) -> Adaptation:
    """The decision in a message.

    Raises:
        StateError: it is damaged.
    """
    try:
        return Adaptation.from_document(message.adaptation)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"decision {message.number} cannot be read: {error!r}") from None


def history_of(messages: dict[int, Decision], query: Query, view: View, log: Log) -> History | None:
    """What an earlier incarnation of the task that decides has left; None if there is nothing.

    A change that the control log does not know was never asked for: its task ended before. It is decided anew.

    Args:
        view: the control log up to this incarnation's `Opened`.
    """
    known = {change.id for change in view.changes} | {request.id for request in view.waiting} | set(view.withdrawn)
    known |= set() if view.open is None else {view.open.id}
    decisions: dict[int, Adaptation] = {}
    account = Account()
    first: Plan | None = None
    for number, message in messages.items():
        try:
            adaptation = adaptation_of(message)
            if adaptation.change and adaptation.change not in known:
                continue
            account, first = Account(**message.account), parse_plan(message.first_plan, query)
        except (StateError, UsageError, TypeError) as error:
            log.warning("decision passed over", number=number, reason=str(error))
            continue
        decisions[number] = adaptation
    return None if first is None else History(decisions, account, first)
