"""The state of the shared operator: the rows of each input by time, by key and by value (Juggler 3.3).

Imports `operators.juggler.predicates` and `operators.state`.
"""
