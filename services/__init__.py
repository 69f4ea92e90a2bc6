"""The processes of Weir: the command line, the Faust worker, its transport, metrics and settings.

Entry: `services.cli`. Clocks, threads, Kafka and the disk are used here; `operators` does the work of the queries.
"""
