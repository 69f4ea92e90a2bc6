"""State spill: moves partition groups from memory to disk and later produces the results that this left pending.

The entry point is `plan_spilling.PlanSpilling`, which the engine calls between slices. `strategies` chooses the groups,
`eviction` moves them out, `ledger` keeps track of their parts, and `cleanup` produces the pending results. The source
is "Run-Time Operator State Spilling for Memory Intensive Long-Running Queries" (SIGMOD 2006), cited as "state-spill".
"""
