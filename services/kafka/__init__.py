"""Kafka as Weir uses it: topics, the batched transport, group assignment, and reading a log from a thread.

Imports `services.process` only. Nothing here knows about tasks or queries.
"""
