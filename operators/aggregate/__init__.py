"""Sliding aggregates above a query's results (design section 2)."""

from operators.aggregate.aggregator import Aggregator

__all__ = ["Aggregator"]
