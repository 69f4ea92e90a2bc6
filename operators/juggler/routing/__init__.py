"""How a new tuple visits the other inputs for all queries at once, and how results leave (Juggler 3.2.2 to 3.4.3).

`visits` is the tree of visits, `probe` finds candidates, `stages` applies predicates, `output` sorts results by query.
Imports `operators.juggler.predicates` and `operators.juggler.state`.
"""
