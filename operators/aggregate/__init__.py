"""Sliding aggregates above a query's results: GROUP BY and EMIT EVERY. The engine calls `Aggregator`."""

from operators.aggregate.aggregator import Aggregator

__all__ = ["Aggregator"]
