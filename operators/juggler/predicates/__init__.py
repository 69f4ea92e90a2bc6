"""Predicates of many queries in one form, sorted so that one look answers for all of them (Juggler 3.2.1, 3.4.2).

`normal_form` is the form, `lists` sorts similar predicates by what they cover, `compiled_lists` lays them out for a
kernel, and `order` with `adaptive` decides which type of predicate is asked first.
"""
