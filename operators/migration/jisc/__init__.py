"""Just-in-time state completion (JISC 4): a new plan begins at once, and missing states are computed when probed.

`strategy` is the executor, `completion` computes what is missing, `demand` and `lookup` say for which keys, `counting`
knows when a state is complete.
"""
