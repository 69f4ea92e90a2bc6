"""Records in Protobuf: schemas, the columns that a schema has, and decoding. Entry: `schemas.protobuf.decoder`."""
