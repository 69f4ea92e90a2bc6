"""Decides which tasks a query has and which partitions each reads, for single-task and distributed queries.

Entry: `tasks.lay_out`, or `distributed.DistributedLayout` for placement per-operator. Imports `services.kafka` and
`services.process`.
"""
