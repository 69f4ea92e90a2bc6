"""Operators stop producing what nobody downstream can use, and produce it when it is wanted (JIT, ICDE 2008)."""
