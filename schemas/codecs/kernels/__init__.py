"""Compiled decoders: pure functions from bytes to arrays."""
