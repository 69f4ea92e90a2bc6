"""Spark jobs: a query over history, and audits of what a running query wrote."""
