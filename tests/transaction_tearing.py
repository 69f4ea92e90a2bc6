"""Tears Kafka transactions on purpose: of one transaction some parts end committed, some aborted, some hang.

A *part* is a topic partition that the transaction wrote to: of a user topic, or of `__consumer_offsets` for the
offsets that it sent. A part *hangs* when it never gets an end marker although the transaction coordinator considers the
transaction complete. Kafka 4.3.1 was seen to leave whole transactions in this state when it was killed between
PREPARE_COMMIT and the markers. A test uses this module to put each part into any state, and then looks at what its
reader or the producer's next incarnation makes of it.

How a transaction is torn: its producer has stopped in the middle, with records flushed, offsets sent, the end not
requested.

1. This module writes the markers of the parts that are to end, with the request between brokers (WriteTxnMarkers).
2. The transaction's record in `__transaction_state` is overwritten by one that says complete and names no partitions.
   Kafka lets a client write there whose `client.id` is `__admin_client`.
3. The broker is killed and started again, since a coordinator reads that topic only when it starts to lead. It loads
   the record and never touches the parts again.

Rejected: no restart, but `transaction.partition.verification.enable=false` and records produced after the coordinator
has completed the transaction. The producer is then no longer the one under test, and the setting is not a user's.

Limits: a broker that is the whole cluster, without encryption or passwords; producers without an epoch of their own per
transaction, as librdkafka's are (the record written says so).
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from tests.broker_fixture import RestartableBroker, wait_until

Part = tuple[str, int]
"""A topic and the number of one of its partitions."""
Outcome = Literal["commit", "abort", "hang"]

OFFSETS_TOPIC = "__consumer_offsets"
STATE_TOPIC = "__transaction_state"
TIMEOUT_S = 30.0
OPEN_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
"""The coordinator's states of a transaction that it is still going to end."""
_COMPLETE = {"commit": (4, "CompleteCommit"), "abort": (5, "CompleteAbort")}


class TearingError(Exception):
    """A transaction cannot be torn as asked, or Kafka answered with an error."""


@dataclass(frozen=True)
class Torn:
    """A transaction and its intended state.

    `outcomes` has every part of the transaction. `believed` is the coordinator's state of the transaction
    afterwards: a producer that is still alive gets that answer when it asks for the transaction's end once more.
    """

    transactional_id: str
    outcomes: Mapping[Part, Outcome]
    believed: Literal["commit", "abort"] = "commit"


@dataclass(frozen=True)
class Transaction:
    """The last transaction of a transactional id, as the coordinator knows it; `parts` while it is open."""

    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    producer_id: int
    epoch: int
    parts: frozenset[Part]


@dataclass(frozen=True)
class OpenProducer:
    """A producer whose transaction is open in a partition, as the partition's leader knows it."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    first_offset: int


def tear(broker: RestartableBroker, transactions: Iterable[Torn]) -> None:
    """Put each part of each transaction into its intended state; this kills and restarts the broker once.

    The producers must be stopped (or at least silent) before, with their transactions open and not near their timeout.

    Raises:
        TearingError: a transaction is not open, its outcomes do not name its parts, or a part is not as asked
            afterwards.
    """
    torn = list(transactions)
    before = [_checked(broker.bootstrap, each) for each in torn]
    for each, found in zip(torn, before, strict=True):
        for part, outcome in each.outcomes.items():
            if outcome != "hang":
                write_marker(broker.bootstrap, part, _producer(broker.bootstrap, part, found), outcome)
    _overwrite(broker.bootstrap, torn, before)
    broker.kill()
    broker.start()
    for each, found in zip(torn, before, strict=True):
        _verify(broker.bootstrap, each, found)


def hanging(bootstrap: str, topic: str, partition: int) -> bool:
    """Whether a transaction is open in the partition that the coordinator will not end."""
    owned = {
        each.producer_id
        for each in (describe(bootstrap, name) for name in transactional_ids(bootstrap))
        if each.state in OPEN_STATES and (topic, partition) in each.parts
    }
    return any(each.producer_id not in owned for each in open_producers(bootstrap, (topic, partition)))


def offsets_part(bootstrap: str, group: str) -> Part:
    """The partition of `__consumer_offsets` that holds a group's offsets."""
    return OFFSETS_TOPIC, partition_of(bootstrap, OFFSETS_TOPIC, group)


def _checked(bootstrap: str, torn: Torn) -> Transaction:
    """The transaction as it stands, open in exactly the parts that its outcomes name."""
    found = describe(bootstrap, torn.transactional_id)
    if found.state != "Ongoing":
        raise TearingError(f"{torn.transactional_id} has no open transaction to tear, its state is {found.state}")
    if found.parts != torn.outcomes.keys():
        raise TearingError(
            f"the transaction of {torn.transactional_id} has the parts {sorted(found.parts)}, "
            f"its outcomes name {sorted(torn.outcomes)}"
        )
    for part in found.parts:
        _producer(bootstrap, part, found)
    return found


def _producer(bootstrap: str, part: Part, transaction: Transaction) -> OpenProducer:
    for producer in open_producers(bootstrap, part):
        if (producer.producer_id, producer.epoch) == (transaction.producer_id, transaction.epoch):
            return producer
    raise TearingError(
        f"{part} holds nothing of the open transaction of {transaction.transactional_id}: "
        "flush its records, or leave the partition out of it"
    )


def _overwrite(bootstrap: str, torn: Sequence[Torn], before: Sequence[Transaction]) -> None:
    """Write to `__transaction_state` that the transactions are complete, without partitions."""
    admin = Producer({"bootstrap.servers": bootstrap, "client.id": "__admin_client", "acks": "all"})
    errors: list[str] = []
    for each, found in zip(torn, before, strict=True):
        key = struct.pack(">h", 0) + _short_string(each.transactional_id)
        status, _ = _COMPLETE[each.believed]
        # version, producer id, epoch, timeout, status, number of partitions, last change, start
        value = struct.pack(
            ">hqhibiqq",
            0,
            found.producer_id,
            found.epoch,
            found.timeout_ms,
            status,
            0,
            time.time_ns() // 1_000_000,
            found.started_ms,
        )
        admin.produce(
            STATE_TOPIC,
            value,
            key,
            partition_of(bootstrap, STATE_TOPIC, each.transactional_id),
            on_delivery=lambda error, _: errors.append(error.name()) if error else None,
        )
    if admin.flush(TIMEOUT_S) or errors:
        raise TearingError(f"records not written to {STATE_TOPIC}: {', '.join(errors) or 'no answer'}")


def _verify(bootstrap: str, torn: Torn, before: Transaction) -> None:
    """Wait until the restarted broker answers for the transaction, and compare with what was asked."""
    wait_until(lambda: _loaded(bootstrap, torn), f"the coordinator of {torn.transactional_id}, and its parts")
    after = describe(bootstrap, torn.transactional_id)
    _, believed = _COMPLETE[torn.believed]
    if (after.state, after.producer_id, after.epoch) != (believed, before.producer_id, before.epoch):
        raise TearingError(f"the coordinator was to believe {believed} of {before}, and has {after}")
    for part, outcome in torn.outcomes.items():
        found = any(each.producer_id == before.producer_id for each in open_producers(bootstrap, part))
        if found != (outcome == "hang"):
            is_now = "open" if found else "ended"
            raise TearingError(f"{part} of {torn.transactional_id} was to {outcome}, and is {is_now}")


def _loaded(bootstrap: str, torn: Torn) -> bool:
    try:
        describe(bootstrap, torn.transactional_id)
        for part in torn.outcomes:
            open_producers(bootstrap, part)
    except TearingError:
        return False
    return True


def partition_of(bootstrap: str, topic: str, name: str) -> int:
    """The partition of an internal topic that has a group's or a transactional id's state: by Java's String.hashCode,
    whose sign is dropped."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", name.encode("utf-16-be")):
        code = (31 * code + unit) & 0xFFFFFFFF
    partitions = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, TIMEOUT_S).topics[topic].partitions
    return min(code, 2**32 - code) % 2**31 % len(partitions)


# The requests. All are of flexible versions: lengths are varints, increased by one, and every structure ends
# with its number of tagged fields, which is always 0 here.


def transactional_ids(bootstrap: str) -> list[str]:
    """All transactional ids that the coordinator knows (ListTransactions)."""
    answer = _ask(bootstrap, 66, 0, _array([]) + _array([]))
    answer.skip("i")
    _raise_for(answer.number("h"), "the list of transactions")
    for _ in answer.items():
        answer.string()
    names = []
    for _ in answer.items():
        names.append(answer.string())
        answer.skip("q")
        answer.string()
        answer.tags()
    return names


def describe(bootstrap: str, transactional_id: str) -> Transaction:
    """What the coordinator knows of a transactional id (DescribeTransactions)."""
    answer = _ask(bootstrap, 65, 0, _array([_string(transactional_id)]))
    answer.skip("i")
    answer.length()
    _raise_for(answer.number("h"), transactional_id)
    name, state = answer.string(), answer.string()
    timeout_ms, started_ms = answer.number("i"), answer.number("q")
    producer_id, epoch = answer.number("q"), answer.number("h")
    parts = set()
    for _ in answer.items():
        topic = answer.string()
        parts |= {(topic, answer.number("i")) for _ in answer.items()}
        answer.tags()
    return Transaction(name, state, timeout_ms, started_ms, producer_id, epoch, frozenset(parts))


def open_producers(bootstrap: str, part: Part) -> list[OpenProducer]:
    """The producers that have a transaction open in a partition (DescribeProducers)."""
    topic, partition = part
    partitions = _array([struct.pack(">i", partition)])
    answer = _ask(bootstrap, 61, 0, _array([_struct(_string(topic), partitions)]))
    answer.skip("i")
    answer.length()
    answer.string()
    answer.length()
    answer.skip("i")
    _raise_for(answer.number("h"), f"partition {partition} of {topic}")
    answer.string()
    found = []
    for _ in answer.items():
        producer_id, epoch = answer.number("q"), answer.number("i")
        answer.skip("iq")  # last sequence, last timestamp
        coordinator_epoch, first_offset = answer.number("i"), answer.number("q")
        answer.tags()
        if first_offset >= 0:
            found.append(OpenProducer(producer_id, epoch, coordinator_epoch, first_offset))
    return found


def write_marker(bootstrap: str, part: Part, producer: OpenProducer, outcome: Literal["commit", "abort"]) -> None:
    """End a producer's transaction in one partition, whatever the coordinator's state of it (WriteTxnMarkers)."""
    topic, partition = part
    partitions = _array([struct.pack(">i", partition)])
    marker = _struct(
        struct.pack(">qh?", producer.producer_id, producer.epoch, outcome == "commit"),
        _array([_struct(_string(topic), partitions)]),
        struct.pack(">i", max(producer.coordinator_epoch, 0)),
    )
    answer = _ask(bootstrap, 27, 1, _array([marker]))
    answer.length()
    answer.skip("q")
    answer.length()
    answer.string()
    answer.length()
    answer.skip("i")
    _raise_for(answer.number("h"), f"a marker for partition {partition} of {topic}")


def _raise_for(code: int, what: str) -> None:
    if code:
        raise TearingError(f"{what}: {_UNNAMED.get(code) or KafkaError(code).name()}")


_UNNAMED = {105: "TRANSACTIONAL_ID_NOT_FOUND"}
"""Errors that librdkafka has no name for."""


_correlation = itertools.count(1)


def _ask(bootstrap: str, api: int, version: int, body: bytes) -> _Answer:
    """Send one request over a connection of its own, and return the body of the response."""
    number = next(_correlation)
    request = struct.pack(">hhi", api, version, number) + _short_string("transaction-tearing") + _struct()
    request += _struct(body)
    host, port = bootstrap.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as incoming:
                (size,) = struct.unpack(">i", incoming.read(4))
                answer = _Answer(incoming.read(size))
    except (OSError, struct.error) as error:
        raise TearingError(f"no answer from {bootstrap} to request {api}: {error}") from error
    if answer.number("i") != number:
        raise TearingError(f"{bootstrap} answered another request than {number}")
    answer.tags()
    return answer


def _short_string(text: str) -> bytes:
    """A string as headers and the records of internal topics have it."""
    coded = text.encode()
    return struct.pack(">h", len(coded)) + coded


def _string(text: str) -> bytes:
    coded = text.encode()
    return _varint(len(coded) + 1) + coded


def _array(items: Sequence[bytes]) -> bytes:
    return _varint(len(items) + 1) + b"".join(items)


def _struct(*fields: bytes) -> bytes:
    return b"".join(fields) + b"\0"


def _varint(number: int) -> bytes:
    coded = bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*coded, number])


class _Answer:
    """The bytes of a response, read from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        """The next number; `form` as `struct` spells it."""
        (found,) = struct.unpack_from(">" + form, self._data, self._at)
        self.skip(form)
        return int(found)

    def skip(self, form: str) -> None:
        self._at += struct.calcsize(">" + form)

    def length(self) -> int:
        """The length of a string or an array; -1 for none."""
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number - 1
            shift += 7

    def items(self) -> range:
        return range(self.length())

    def string(self) -> str:
        """The next string; a null one is empty."""
        size = max(self.length(), 0)
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def tags(self) -> None:
        """Skip a structure's tagged fields."""
        for _ in range(self.length() + 1):
            self.length()
            self._at += self.length() + 1
