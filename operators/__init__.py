"""The engine: pure and synchronous; knows no Kafka, no wall clock, no thread, no environment."""
