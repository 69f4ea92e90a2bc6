"""Decides how the records of a stream's topic are decoded, and gets the schemas that this needs."""
