"""Benchmarks behind `weir bench`."""
