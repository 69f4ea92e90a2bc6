"""The engine of one task: it takes batches of events and returns results in order. The entry is `engine.Engine`.

`intake` sorts events into their total order, `selection` stores the events that the query's conditions on single
streams accept, and `executors` makes the executor that joins them. The engine is pure: no clock, no thread, no Kafka.
The package may import every package of `operators` except `groups`, `distributed` and `explain`.
"""
