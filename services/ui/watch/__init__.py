"""What is known of a running query: `live.LiveQuery` keeps it, `follow` reads it from Kafka.

`headline` says in one sentence how far results are and what holds them back. `timeline` has what happened second by
second, `history` the reports of the last day.
"""
