"""Values within JSON texts: those of JSON_VALUE (`json_values`), and the elements of arrays (`json_arrays`)."""
