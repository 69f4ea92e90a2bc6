"""Where a task begins after a restart: what it committed, its state on disk, and its snapshots.

`starting_point` decides, from values alone. Imports `services.kafka` and `services.process`.
"""
