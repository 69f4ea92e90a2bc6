"""The memory of joins: the source tuples of each stream, stored once, and the states of both sides of every join.

`store` keeps a stream's tuples. `side_state` keeps the tuples of one side of a join that may still match, as row ids
into stores. `match` joins new tuples with such a state. `checkpoint` and `durability` decide which tuples must survive
a crash. The package imports `operators.data`, `operators.plan` and kernels.
"""
