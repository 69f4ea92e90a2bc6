"""Runs one task: a program on one set of partitions, in its own thread. Entry: `task.Task`.

`lane` and `block_lane` feed the program's engine, `replay` restores its state, `epochs` advances it, and `commits`
delivers what it finds. May import every package of `services` except `program`, `worker`, `batch` and `commands`.
"""
