"""`weir run`: runs queries over files.

Entry: `command`. `one_query` runs a single query with a plan of its own; `several_queries` runs a group of queries.
"""
