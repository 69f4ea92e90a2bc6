"""Stores what exceeds a memory budget: spilled blocks in RocksDB, their log on Kafka, and the backlog of a run.

`budget` reads the options of a run, `backlog` and `destinations` serve `weir cleanup`, `spill_log` and
`productivity_link` serve tasks. Imports `services.control`, `services.delivery`, `services.files`, `services.kafka` and
`services.process`.
"""
