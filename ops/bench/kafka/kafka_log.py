"""Topics of the benchmark: creates and fills them, reads them back, and measures the ceilings of reading.

A ceiling is the rate that a program with confluent-kafka alone reaches on the same topics, one after the other:
consume in batches, decode, nothing else. Decoding is orjson record by record, as such loops are written, or
Weir's decoder batch by batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
import polars as pl
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ops.bench.measuring.measure import Progress
from ops.bench.workloads import Workload
from schemas.codecs.json_codec import JsonDecoder
from schemas.columns import Batch
from schemas.errors import BrokerError
from services.broker import broker as brokers

DEADLINE_SECONDS = 60.0
CONSUMED_AT_ONCE = 10_000


def make_topics(bootstrap: str, names: Sequence[str]) -> None:
    """Make topics of one partition and wait until they can be used."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(DEADLINE_SECONDS)
    until = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < until:
        known = admin.list_topics(timeout=10).topics
        if all(name in known and all(p.leader >= 0 for p in known[name].partitions.values()) for name in names):
            return
        time.sleep(0.05)
    raise BrokerError(f"topics {', '.join(names)} have no leader after {DEADLINE_SECONDS:g} s")


Encode = Callable[[str, Batch], Sequence[bytes]]
"""Makes the records of events of a stream."""


def json_lines(stream: str, events: Batch) -> Sequence[bytes]:
    """Events in JSON."""
    frame = pl.DataFrame({name: column.values for name, column in events.columns.items()})
    return frame.write_ndjson().encode().splitlines()


def fill(
    bootstrap: str,
    workload: Workload,
    topics: Mapping[str, str],
    seconds: int,
    seed: int,
    progress: Progress,
    encode: Encode = json_lines,
) -> None:
    """Write the events of `seconds` of event time, all streams in parallel."""
    # Without idempotence, requests that a busy machine repeats would change the order, and events would be late.
    ordered = {"linger.ms": 50, "batch.size": 1 << 20, "enable.idempotence": True, "log_level": 0}
    producer = Producer({"bootstrap.servers": bootstrap, **ordered})
    for number in range(seconds):
        progress.say(f"filling topics: second {number + 1} of {seconds}")
        for stream, batch in workload.second(number, seed).items():
            topic = topics[stream]
            for record in encode(stream, batch):
                while True:
                    try:
                        producer.produce(topic, record)
                        break
                    except BufferError:
                        producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(DEADLINE_SECONDS)
    if left:
        raise BrokerError(f"{left} records could not be written to {bootstrap} in {DEADLINE_SECONDS:g} s")


def reader(bootstrap: str, topics: Sequence[str]) -> Consumer:
    """A consumer at the beginning of partition 0 of every topic; it reads only committed records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"weir-bench-{os.urandom(4).hex()}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
    return consumer


@contextmanager
def running_broker(
    bootstrap: str | None, heap: str, folder: Path, progress: Progress
) -> Iterator[tuple[str, int | None, str]]:
    """Yield the broker's address, its process id if the benchmark runs it, and a note; starts one where none is
    given."""
    if bootstrap is not None:
        yield bootstrap, None, f"given, at {bootstrap}"
        return
    broker = brokers.start(folder, 0, heap=heap, progress=progress.say)
    try:
        yield broker.bootstrap, broker.pid, f"Apache Kafka {broker.version}, single node, on this machine"
    finally:
        brokers.stop(folder)


Decode = Callable[[str, list[Message]], object]
"""Decodes messages of a topic."""


def decode_objects(topic: str, messages: list[Message]) -> object:
    """orjson, record by record."""
    return [orjson.loads(message.value()) for message in messages]  # type: ignore[arg-type]


def decode_columns(workload: Workload, topics: Mapping[str, str]) -> Decode:
    """Weir's decoder, batch by batch."""
    streams = {stream.name: JsonDecoder(stream) for stream in workload.query().streams()}
    decoders = {topic: streams[stream] for stream, topic in topics.items()}

    def decode(topic: str, messages: list[Message]) -> object:
        return decoders[topic].decode_values([message.value() for message in messages])

    return decode


def read_through(bootstrap: str, topics: Sequence[str], events: int, decode: Decode) -> float:
    """Records per second of a bare loop that consumes and decodes `events` records, one topic after the other.

    The clock of a topic begins when its first record has arrived.
    """
    count, seconds = 0, 0.0
    for topic in topics:
        consumer = reader(bootstrap, [topic])
        until = time.monotonic() + DEADLINE_SECONDS
        left = events // len(topics) - len(consumer.consume(1, DEADLINE_SECONDS))
        began = time.perf_counter()
        while left > 0:
            messages = consumer.consume(CONSUMED_AT_ONCE, 1.0)
            decode(topic, messages)
            left -= len(messages)
            count += len(messages)
            if time.monotonic() > until:
                raise BrokerError(f"{left} records of {topic} are missing")
        seconds += time.perf_counter() - began
        consumer.close()
    return count / seconds


def count_records(bootstrap: str, topic: str, least: int) -> int:
    """Count the committed records of a topic: wait for `least`, then until a second brings no more."""
    consumer = reader(bootstrap, [topic])
    count = 0
    until = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < until:
        found = len(consumer.consume(CONSUMED_AT_ONCE, 1.0))
        count += found
        if not found and count >= least:
            break
    consumer.close()
    return count
