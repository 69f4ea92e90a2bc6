"""Numba-compiled inner loops: pure functions from arrays to arrays."""
