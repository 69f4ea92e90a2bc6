"""Delivers the output of an epoch to Kafka: exactly once, or at least once. Entry: `sink.Sink`.

`transactional` writes one transaction per epoch. `completion` decides which records must be written again when Kafka
completed a transaction only in part. `epoch_output` defines what an epoch delivers. Imports `services.recovery`,
`services.kafka`, `services.process`.
"""
