"""What joins remember: the source tuples of each stream, once, and the states of both sides of every join.

`store` holds a stream's tuples; `side_state` holds what one side of a join may still match, as row ids into stores;
`match` joins new tuples with such a state; `checkpoint` and `durability` say which tuples must survive a crash.
Imports `operators.data`, `operators.plan` and kernels.
"""
