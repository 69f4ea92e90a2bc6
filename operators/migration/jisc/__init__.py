"""Just-in-time state completion (JISC 4): a new plan starts at once, and missing states are computed when probed.

`strategy` is the migration, and the executor while it runs. `completion` computes missing entries, `demand` and
`lookup` determine for which keys, and `counting` detects when a state is complete.
"""
