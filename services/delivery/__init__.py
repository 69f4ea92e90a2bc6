"""Delivers the output of an epoch to Kafka: exactly once, or at least once. Entry: `sink.Sink`.

`transactional` writes one transaction per epoch; `completion` decides which transactions that Kafka tore must be
written again; `epoch_output` is what an epoch delivers. Imports `services.recovery`, `services.kafka`,
`services.process`.
"""
