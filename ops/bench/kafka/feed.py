"""A paced producer: `python -m ops.bench.kafka.feed --rate 5000 --seconds 30 ... A=topic B=topic C=topic`.

Writes events of the three-way join's shape at a constant rate, spread evenly over time and streams. The
`ts` of an event is the wall clock when it is handed to the client, so a result's `_ts` is when its
last component was produced. Prints one line of JSON: events written, seconds, and by how much the pace was missed
at worst.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping

import numpy as np
from confluent_kafka import Producer

from ops.bench.workloads import three_way
from schemas.errors import WeirError

TICK_MS = 5


class Feed:
    """Runs this module in a process of its own.

    Args:
        tick_ms: interval between two batches of events. Each costs the broker a request per topic.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Mapping[str, str],
        rate: int,
        seconds: float,
        values: int,
        seed: int,
        tick_ms: int = TICK_MS,
    ) -> None:
        command = [sys.executable, "-m", "ops.bench.kafka.feed", "--bootstrap", bootstrap]
        command += ["--rate", str(rate), "--seconds", str(seconds), "--values", str(values), "--seed", str(seed)]
        command += ["--tick", str(tick_ms)]
        command += [f"{stream}={topic}" for stream, topic in topics.items()]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    @property
    def running(self) -> bool:
        """False once all events have been written."""
        return self._process.poll() is None

    def finish(self) -> Mapping[str, float]:
        """Wait for its end; returns the counts that it printed."""
        output, _ = self._process.communicate()
        if self._process.returncode != 0:
            raise WeirError(f"the paced producer ended with {self._process.returncode}")
        return dict(json.loads(output))

    def stop(self) -> None:
        """Kill it now."""
        if self.running:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Produce until the time is up."""
    parser = argparse.ArgumentParser(description="write events at a constant rate")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rate", type=int, required=True, help="events per second, all streams together")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--values", type=int, required=True, help="join columns are uniform in [1, VALUES]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tick", type=int, default=TICK_MS, help="ms between two batches of events")
    parser.add_argument("topics", nargs="+", metavar="STREAM=TOPIC")
    given = parser.parse_args()
    topics = dict(item.split("=", 1) for item in given.topics)
    columns = {stream: three_way().streams[stream] for stream in topics}
    ordered = {"linger.ms": 2, "enable.idempotence": True, "log_level": 0}
    producer = Producer({"bootstrap.servers": given.bootstrap, **ordered})
    rng = np.random.default_rng(given.seed)
    tick_s = given.tick / 1000
    began = time.monotonic()
    written, worst, names = 0, 0.0, list(topics)
    while True:
        passed = time.monotonic() - began
        if passed >= given.seconds:
            break
        due = int(passed * given.rate)
        worst = max(worst, (due - written) / given.rate - tick_s)
        values = rng.integers(1, given.values + 1, (due - written, 2)).tolist()
        for pair in values:
            stream = names[written % len(names)]
            joined = "".join(f',"{name}":{value}' for name, value in zip(columns[stream], pair, strict=False))
            record = f'{{"id":{written},"ts":{time.time_ns() // 1_000_000}{joined}}}'
            while True:
                try:
                    producer.produce(topics[stream], record)
                    break
                except BufferError:  # the broker is behind; `worst` will show it
                    producer.poll(0.1)
            written += 1
        producer.poll(0)
        time.sleep(tick_s)
    producer.flush(30)
    json.dump(
        {"events": written, "seconds": time.monotonic() - began, "latest_seconds": max(worst, 0.0)},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
