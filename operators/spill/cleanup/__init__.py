"""Cleanup: produces the results that spilling left pending (state-spill 3 and 4).

`missed_results` joins the parts of one partition group, `by_join` processes a plan from the sources to the root,
`steps` limits the work between two slices, and `offline` runs in another process after the run.
"""
