"""Stores what exceeds a memory budget: spilled blocks in RocksDB, their log on Kafka, and the backlog of a run.

`budget` reads the options of a run, `backlog` and `destinations` serve `weir cleanup`, `spill_log` serves tasks.
Imports `services.delivery`, `services.files`, `services.kafka` and `services.process`.
"""
