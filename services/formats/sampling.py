"""Reads the last records of a topic, for `weir inspect`."""

from __future__ import annotations

import numpy as np

from services.formats.proposal import Sample
from services.kafka.readback import reading
from services.kafka.topics import TopicAdmin
from services.process.security import KafkaClients


def sample_of(clients: KafkaClients, topic: str, most: int) -> Sample:
    """Return the last committed records of a topic, about equally many of each partition.

    Raises:
        BrokerError: the topic is missing, or Kafka does not answer.
    """
    admin = TopicAdmin(clients)
    lanes = [(topic, number) for number in range(admin.inputs([topic], wait=False)[topic])]
    begins, ends = admin.log_ranges(lanes), admin.stable_ends(lanes)
    share = -(-most // len(lanes))
    values: dict[int, list[bytes | None]] = {}
    times = {}
    with reading(clients, topic) as log:
        for lane in lanes:
            number, begin, end = lane[1], begins[lane][0], ends[lane][0]
            found = [message for _, message in log.between(number, max(begin, end - share), end)]
            values[number] = [message.value() for message in found]
            times[number] = np.array([message.timestamp()[1] for message in found], np.int64)
    total = sum(ends[lane][0] - begins[lane][0] for lane in lanes)
    return Sample(topic, values, times, total)
