"""Numba-compiled inner loops over arrays; apart from arrays documented as changed, functions have no side effects."""
