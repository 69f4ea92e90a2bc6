"""The engine of Weir: joins and other operators over batches of tuples. The packages of `services` drive it.

It is pure and synchronous: it uses no Kafka, no wall clock, no thread and no environment. Entry:
`operators.engine.engine.Engine`, or `operators.groups.engine.GroupEngine` for several queries.
"""
