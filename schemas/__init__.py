"""The vocabulary of Weir: query language, stream schemas, columns, codecs, control messages and errors."""
