"""Reads Avro: schemas (`schema`), record by record (`rules`), and in compiled passes (`layout`, `decoder`)."""
