"""Kafka clients of Weir: topics, the batched transport of the worker, group assignment, and reading a log in a thread.

Imports `services.process` only. Nothing here knows about queries; of tasks, `assignor` knows which partitions belong
together.
"""
