"""The naive program on Kafka: confluent-kafka, orjson, dicts; transactions with offsets, ten a second.

    python -m ops.bench.kafka.naive_kafka --bootstrap HOST:PORT --window 10000 --events N --out TOPIC A=a B=b C=c

Merges the topics by `ts` up to the lowest of their newest timestamps, joins, produces. Ends after N events,
and prints one line of JSON: results and seconds, from the first record on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from operator import itemgetter

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

from ops.bench.naive import Event, NaiveJoin
from ops.bench.workloads import three_way

COMMIT_SECONDS = 0.1


def main() -> None:
    """Consume, join and produce until N events have been read."""
    parser = argparse.ArgumentParser(description="a naive window join on Kafka")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--window", type=int, required=True, help="window in ms")
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("topics", nargs="+", metavar="STREAM=TOPIC")
    given = parser.parse_args()
    stream_of = {topic: stream for stream, topic in (item.split("=", 1) for item in given.topics)}
    group = f"naive-{os.urandom(4).hex()}"
    consumer = Consumer(
        {
            "bootstrap.servers": given.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0) for topic in stream_of])
    producer = Producer(
        {"bootstrap.servers": given.bootstrap, "transactional.id": group, "linger.ms": 5, "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    shape = three_way().streams
    join = NaiveJoin({stream: shape[stream] for stream in stream_of.values()}, given.window)
    place = {stream: number for number, stream in enumerate(stream_of.values())}
    waiting: dict[str, deque[Event]] = {stream: deque() for stream in place}
    began, committed, read, results = 0.0, time.monotonic(), 0, 0
    while read < given.events:
        messages = consumer.consume(10_000, 0.1)
        began = began or time.perf_counter()
        for message in messages:
            waiting[stream_of[message.topic()]].append(orjson.loads(message.value()))  # type: ignore[arg-type]
        read += len(messages)
        if read >= given.events:
            until = float("inf")
        else:
            until = min((events[-1]["ts"] for events in waiting.values() if events), default=0)
            until = until if all(waiting.values()) else 0
        ready = []
        for stream, events in waiting.items():
            while events and events[0]["ts"] < until:
                ready.append((events[0]["ts"], place[stream], stream, events.popleft()))
        ready.sort(key=itemgetter(0, 1))
        for _, _, stream, event in ready:
            for result in join.push(stream, event):
                row = {name.lower(): part["id"] for name, part in zip(place, result, strict=True)}
                row["_ts"] = max([part["ts"] for part in result])
                producer.produce(given.out, orjson.dumps(row))
                results += 1
        producer.poll(0)
        if time.monotonic() - committed > COMMIT_SECONDS or read >= given.events:
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
            )
            producer.commit_transaction(30)
            producer.begin_transaction()
            committed = time.monotonic()
    json.dump({"results": results, "seconds": time.perf_counter() - began}, sys.stdout)


if __name__ == "__main__":
    main()
