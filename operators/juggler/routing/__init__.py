"""Routes a new tuple through the other inputs for all queries at once, and emits results (Juggler 3.2.2 to 3.4.3).

`visits` is the tree of visits, `probe` finds candidates, `stages` applies predicates, `output` sorts results by query.
Imports `operators.juggler.predicates` and `operators.juggler.state`.
"""
