"""Delete the beginnings of partitions."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient


def delete_before(
    admin: AdminClient, offsets: Mapping[tuple[str, int], int], timeout_s: float
) -> dict[tuple[str, int], KafkaError]:
    """Delete the records before the given offsets; what cannot be done, and why.

    Nothing else may call `AdminClient.delete_records`: up to confluent-kafka 2.15.0 it gives back a reference to its
    argument that it never took (its issue 2275). The list is freed while it is in use, and whatever takes its memory
    next has it together with another: a worker ended in a segmentation fault, or lost results without a word.
    """
    if not offsets:
        return {}
    wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(wanted))  # the reference that is given back
    failed: dict[tuple[str, int], KafkaError] = {}
    for tp, future in admin.delete_records(wanted, request_timeout=timeout_s).items():
        try:
            future.result()
        except KafkaException as error:
            failed[(tp.topic, tp.partition)] = error.args[0]
    return failed
