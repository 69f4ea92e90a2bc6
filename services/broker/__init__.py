"""A single-node Apache Kafka on loopback, for development, tests and benchmarks. Entry: `broker`."""
