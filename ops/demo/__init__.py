"""The demonstration: a year of departures and weather through a query, checked against DuckDB."""
