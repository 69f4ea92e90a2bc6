"""The engine of one task: batches of events in, results in order out. Entry: `engine.Engine`.

`intake` puts events into their total order, `selection` lets in what the query's conditions on single streams accept,
and `executors` builds what joins them. Pure: no clock, no thread, no Kafka. May import every package of `operators` but
`groups`, `distributed` and `explain`.
"""
