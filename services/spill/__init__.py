"""The disk tier: a memory budget's options, spilled blocks in RocksDB, their log on Kafka, and the offline backlog.

Imports `services.delivery`, `services.files`, `services.kafka` and `services.process`.
"""
