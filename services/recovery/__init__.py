"""Finds where a task starts again: reads its last commits, stores its snapshots, and plans what is replayed.

`services.worker.task_opener` calls it; `services.task.replay` carries the plan out. `starting_point` decides where to
start, from values alone; `state_store` holds the snapshots. Imports `services.files`, `services.kafka` and
`services.process`.

**When snapshots are deleted.** A task has one table per slot of the state directory (`state_dir`).

- With each snapshot, `StateStore.write` deletes the blocks that no window needs any more.
- When the task starts, `StateStore.roll_back` deletes the blocks that no snapshot names.
- `StateStore.wipe` empties the table when the task starts without its snapshot, or when the snapshot is damaged. If
  RocksDB finds its own files damaged, the task opener deletes the table's folder.

- A plan version of a distributed query has a group of its own. When nothing of it is needed any more, `StateDir.forget`
  deletes its tables.

Nothing else is deleted. The table of a task that has moved to another worker stays in the slot; it is used if the task
comes back. The tables of former consumer groups stay, too. An operator may delete a table, the folder of a group, or a
slot, while no worker runs in that slot. The next recovery of these tasks then reads more input again. It needs Kafka to
have the whole input of their windows.
"""
