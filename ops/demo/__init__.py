"""The demonstration: runs a query over a year of departures and weather, and checks the results against DuckDB."""
