"""Reads the last records that a query or a group has written, for the page: results, late records, dead letters.

Entry: `Rows.document`. It reads only when it is asked, committed records only, and keeps what it found for a second, so
that many open pages cost one read.
"""

from __future__ import annotations

import heapq
import re
import threading
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain
from operator import itemgetter
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from schemas.errors import UsageError
from schemas.query import Query
from services.formats.registry_access import RegistryAccess
from services.kafka.log_consumer import LogConsumer, log_consumer
from services.process.rights import reason
from services.process.security import KafkaClients

KINDS = ("results", "late", "dead")

LAST = 50
"""The page shows so many records, and so many offsets of each partition are read at first."""

FURTHER = 8
"""Offsets of aborted records and of transaction markers bring nothing. Where a partition has too few records, so many
times as many offsets are read."""

FURTHEST = LAST * FURTHER**2
"""At most so many offsets of a partition are read."""

DEADLINE_S = 3.0
"""How long a read takes at most. What has come until then is shown."""

POLL_S = 0.1
MESSAGES = 1_000

KEPT_S = 1.0
"""How long what was read is the answer to further requests."""

MOST = 2_000
"""So many characters of a value are shown."""

HIDDEN = "hidden by --hide-values"

Document = dict[str, Any]

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_WITHOUT_VALUE = re.compile(
    r"(late|idle)$|(timestamp )?field '[^']*'|record timestamp|the record is empty|broken JSON|result of \d+ bytes"
    r"|(broken Avro: .*|\d+ bytes follow the Avro record: .*|the record has no frame of a schema registry: .*)$"
    r"|(the registry has no schema \d+|schema \d+ of the registry is .*)$"
)
"""How a reason begins that shows no value so far (`schemas.codecs.decoded`, `services.delivery`)."""


class Rows:
    """The last records of the topics of a query, or of a group of queries. Methods may be called from any thread.

    Args:
        name: of the query or the group, whose topics of late records and dead letters begin with it.
        queries: returns the queries whose results are asked for, by name. They may come and go.
        hide_values: leave out values and keys, and what reasons show of them.
        access: how to reach the schema registry of results that have a schema.
    """

    def __init__(
        self,
        clients: KafkaClients,
        name: str,
        queries: Callable[[], Mapping[str, Query]],
        hide_values: bool = False,
        access: RegistryAccess | None = None,
    ) -> None:
        self._clients = clients
        self._name = name
        self._queries = queries
        self._hide_values = hide_values
        self._access = access or RegistryAccess()
        self._locks = {kind: threading.Lock() for kind in KINDS}
        self._found: dict[tuple[str, str], tuple[float, Document]] = {}
        self._decoders: dict[str, tuple[Query, Callable[[bytes], bytes]]] = {}

    def document(self, given: Mapping[str, str]) -> Document:
        """Return the newest records of one kind, as values that JSON can encode.

        Args:
            given: `kind`, which is `results`, `late` or `dead`; for results also `query`, unless there is one only.

        Returns:
            `kind` and `topic`; `rows`, the newest first; `complete`, whether these are surely the newest; `hidden`,
            whether values are left out; `note`, why there is nothing, or empty. A row has `topic`, `partition`,
            `offset` and `time` (ms). Unless values are hidden it has `key` and `value`, each None or `text`, `hex`
            (whether the text is bytes in hexadecimal), `bytes` (its length) and `cut` (whether the text is a part
            of it). Results then also have `headers`, each with `name` and `value`. Late records and dead letters have
            `reason`, as written in the record, and `origin`: None, or `stream`, `topic`, `partition` and `offset` of
            the input record, as far as they are known.

        Raises:
            UsageError: there is no such kind, or no such query.
        """
        kind = given.get("kind", "")
        if kind not in KINDS:
            raise UsageError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        name, query = self._query(given.get("query")) if kind == "results" else ("", None)
        asked = kind, name
        with self._locks[kind]:
            if asked not in self._found or time.monotonic() - self._found[asked][0] >= KEPT_S:
                self._found[asked] = time.monotonic(), self._read(kind, name, query)
            return self._found[asked][1]

    def _query(self, name: str | None) -> tuple[str, Query]:
        queries = self._queries()
        if name is None and len(queries) == 1:
            return next(iter(queries.items()))
        if name not in queries:
            raise UsageError(f"query must be one of {', '.join(sorted(queries))}, got {name!r}")
        return name, queries[name]

    def _read(self, kind: str, name: str, query: Query | None) -> Document:
        topic = f"{self._name}.{kind}" if query is None else query.sink or ""
        found: Document = {"kind": kind, "topic": topic, "hidden": self._hide_values}
        found |= {"rows": [], "complete": True, "note": ""}
        if not topic:
            return found | {"note": "the query has no INSERT INTO, so no topic has its results"}
        consumer = log_consumer(self._clients, topic, isolation__level="read_committed")
        try:
            shown = None if query is None else self._decoder(name, query)
            tail = _Tail(consumer, topic, lambda message: self._row(message, shown))
            if not tail.exists():
                return found | {"note": f"there is no topic {topic!r} yet, or this user needs READ on it"}
            return found | {"rows": tail.read(), "complete": tail.complete}
        except KafkaException as error:
            why = reason(error.args[0], f"READ on topic {topic!r}")
            return found | {"complete": False, "note": f"topic {topic!r} cannot be read now: {why}"}
        finally:
            consumer.close()

    def _decoder(self, name: str, query: Query) -> Callable[[bytes], bytes]:
        """Return what shows a query's results as JSON. It is kept: it knows schemas of the registry."""
        if name not in self._decoders or self._decoders[name][0] is not query:
            there = self._queries()
            self._decoders = {one: decoder for one, decoder in self._decoders.items() if one in there}
            self._decoders[name] = query, _as_json(query, self._access)
        return self._decoders[name][1]

    def _row(self, message: Message, shown: Callable[[bytes], bytes] | None) -> Document:
        """Make the row of a record.

        Args:
            shown: shows a result as JSON; None for late records and dead letters.
        """
        row: Document = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "time": _time(message),
        }
        headers = {name: _header(value) for name, value in dict(message.headers() or []).items()}
        if not self._hide_values:
            key, value = message.key(), message.value()
            if shown is not None:
                key, value = (None if raw is None else shown(raw) for raw in (key, value))
                row["headers"] = [{"name": name, "value": _shown(_raw(text))} for name, text in message.headers() or []]
            row |= {"key": _shown(key), "value": _shown(value, _number(headers.get("truncated")))}
        if shown is None:
            why = headers.get("reason", "")
            row |= {"reason": _hidden(why) if self._hide_values else why, "origin": _origin(headers)}
        return row


class _Tail:
    """Reads the last committed records of a topic, until a deadline.

    Args:
        make: makes a row of a record, which is then dropped: it may be large.

    Attributes:
        complete: whether what was read has surely the newest records.
    """

    def __init__(self, consumer: LogConsumer, topic: str, make: Callable[[Message], Document]) -> None:
        self._consumer = consumer
        self._topic = topic
        self._make = make
        self._deadline = time.monotonic() + DEADLINE_S
        self._partitions: list[int] = []
        self.complete = True

    def exists(self) -> bool:
        """Look the topic up, and return whether it is there."""
        # Of all topics: a broker may create one that is asked for by its name.
        found = self._consumer.list_topics(timeout=self._left_s()).topics.get(self._topic)
        if found is None or not found.partitions:
            return False
        self._partitions = [number for number, one in found.partitions.items() if one.leader >= 0]
        self.complete = len(self._partitions) == len(found.partitions)
        return True

    def read(self) -> list[Document]:
        """Return the rows of the newest records, the newest first."""
        begins, ends = self._offsets(OFFSET_BEGINNING), self._offsets(OFFSET_END)
        found: dict[int, list[Document]] = {number: [] for number in ends}
        todo = {number: (max(begins[number], end - LAST), end) for number, end in ends.items() if begins[number] < end}
        back = LAST
        while todo:
            for number, rows in self._between(todo).items():
                found[number] = [*rows, *found[number]][-LAST:]
            short = [n for n, (begin, _) in todo.items() if begin > begins[n] and len(found[n]) < LAST]
            back *= FURTHER
            if short and (back > FURTHEST or not self._left_s()):
                self.complete = False
                break
            todo = {n: (max(begins[n], ends[n] - back), todo[n][0]) for n in short}
        return heapq.nlargest(LAST, chain.from_iterable(found.values()), itemgetter("time", "partition", "offset"))

    def _offsets(self, place: int) -> dict[int, int]:
        """Return first offsets, or the ends of what is committed: Kafka takes these places as if they were times."""
        asked = [TopicPartition(self._topic, number, place) for number in self._partitions]
        found = self._consumer.offsets_for_times(asked, timeout=self._left_s()) if asked else []
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return {each.partition: each.offset for each in found}

    def _between(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, deque[Document]]:
        """Return the last rows of a range of offsets in each partition, in order."""
        found = {number: deque[Document](maxlen=LAST) for number in ranges}
        todo = set(ranges)
        self._consumer.assign([TopicPartition(self._topic, number, begin) for number, (begin, _) in ranges.items()])
        while todo and self._left_s():
            for message in self._consumer.consume(MESSAGES, min(POLL_S, self._left_s())):
                error, number = message.error(), message.partition()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if number not in todo:
                    continue
                end, offset = ranges[number][1], message.offset() or 0
                if error is None and offset < end:
                    found[number].append(self._make(message))
                if error is not None or offset >= end - 1:
                    todo.remove(number)
        self.complete = self.complete and not todo
        return found

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def _as_json(query: Query, access: RegistryAccess) -> Callable[[bytes], bytes]:
    """What shows a query's results as JSON; it leaves them as they are where no registry is known."""
    url = query.result_format.registry or access.url
    if not query.result_format.has_schema or url is None:
        return bytes
    from services.ui.documents.schema_text import SchemaText  # not above: it loads Arrow, which most pages do not need

    return SchemaText(url, access, (query.result_format.format, query.result_format.key_format or ""))


def _time(message: Message) -> int:
    """Return a record's timestamp in ms; 0 where it has none."""
    kind, ms = message.timestamp()
    return 0 if kind == TIMESTAMP_NOT_AVAILABLE else int(ms)


def _shown(raw: bytes | None, length: int | None = None) -> Document | None:
    """Return a value or a key as text.

    Args:
        length: of the whole, where `raw` is only its beginning.
    """
    if raw is None:
        return None
    length = len(raw) if length is None else length
    part = raw[: 4 * MOST]
    try:
        text = getincrementaldecoder("utf-8")().decode(part, final=len(part) == length)
    except UnicodeDecodeError:
        text = "\0"
    is_hex = _CONTROL.search(text) is not None
    if is_hex:
        text = raw[: MOST // 2 + 1].hex()
    cut = len(text) > MOST or len(part) < length
    return {"text": f"{text[:MOST]}…" if cut else text, "hex": is_hex, "bytes": length, "cut": cut}


def _header(value: bytes | str | None) -> str:
    return (_raw(value) or b"")[:MOST].decode(errors="replace")


def _raw(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _origin(headers: Mapping[str, str]) -> Document | None:
    """Return where an input record was. A result that was too large has only the topic that refused it."""
    if "topic" not in headers:
        return None
    return {
        "stream": headers.get("stream", ""),
        "topic": headers["topic"],
        "partition": _number(headers.get("partition")),
        "offset": _number(headers.get("offset")),
    }


def _hidden(why: str) -> str:
    """Return a reason without the values that it shows."""
    found = _WITHOUT_VALUE.match(why)
    if found is None:
        return HIDDEN
    return why if found[0] == why else f"{found[0]}: {HIDDEN}"
