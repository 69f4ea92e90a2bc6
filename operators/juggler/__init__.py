"""One operator that executes many queries (Juggler, WPI 2004).

The entry is `operator.Juggler`. `predicates` finds the predicates that hold for all queries at once, `routing` the path
of a tuple through the inputs; `state` stores the tuples, and `feedback` keeps back those without a partner.
"""
