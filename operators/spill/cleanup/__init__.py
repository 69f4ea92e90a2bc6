"""Cleanup: produces the results that spilling missed (state spill 3 and 4).

`missed_results` joins the parts of one partition group, `by_join` goes through a plan from the sources to the root,
`steps` bounds the work between two slices, and `offline` does it in another process after the run.
"""
