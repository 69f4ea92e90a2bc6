"""What is said: query language, stream schemas, columns, codecs, control messages, errors."""
