"""Spark jobs: answer a query over history, audit what a running query wrote, and clean up backlogs of spilled state."""
