"""Makes what the page shows: the plan (`picture`), a group of queries, the last records, a comparison of plans.

`one_file` makes a page without a server of it.
"""
