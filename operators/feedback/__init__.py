"""Feedback between operators: a join does not produce results that its consumer cannot use yet (JIT, ICDE 2008).

The entry is `feedback.feedback_of`, which the engine calls. `tree` does it for trees of binary joins and `stems` for
M-Joins and eddies, each with guards that decide when watching pays.
"""
