"""Restarts a task where its last commit left it: reads its commits, stores its snapshots, and plans the recovery.

`services.worker.task_opener` calls it. `starting_point` decides where to start, from values alone; `state_store` holds
the snapshots. Imports `services.kafka` and `services.process`.
"""
