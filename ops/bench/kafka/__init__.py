"""Benchmarks of workers on a real Kafka: rates and latency, plan changes, feedback between workers, failures."""
