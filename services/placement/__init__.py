"""Which tasks a query has, and which partitions each reads; of plans whose joins are distributed, too.

Imports `services.kafka` and `services.process`.
"""
