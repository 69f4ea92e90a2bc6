"""Predicates of many queries in one form, sorted so that one search evaluates all of them (Juggler 3.2.1, 3.4.2).

`normal_form` is the form, `lists` sorts similar predicates in covering order, `compiled_lists` lays them out for a
kernel, and `order` with `adaptive` decides which predicate type is evaluated first.
"""
