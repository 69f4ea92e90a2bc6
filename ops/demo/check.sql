-- The question of flights.sql in DuckDB's SQL, over whole tables and without windows: three instants that lie
-- within an hour of each other, pair by pair. Times are milliseconds since 1970, as in the results.
SELECT w.airport, w.observed, w.visibility_miles, w.rain_inches, w.gust_mph,
  a.id AS first_id, a.carrier AS first_carrier, a.flight AS first_flight, a.destination AS first_destination,
  a.departed AS first_departed, a.delay_minutes AS first_delay_minutes,
  b.id AS second_id, b.carrier AS second_carrier, b.flight AS second_flight, b.destination AS second_destination,
  b.departed AS second_departed, b.delay_minutes AS second_delay_minutes,
  greatest(w.observed, a.departed, b.departed) AS _ts
FROM weather w, departures a, departures b
WHERE a.airport = w.airport AND b.airport = w.airport AND a.id < b.id
  AND a.delay_minutes > 60 AND b.delay_minutes > 60
  AND (w.visibility_miles < 1 OR w.rain_inches > 0.1 OR w.gust_mph > 40)
  AND a.departed BETWEEN w.observed - 3600000 AND w.observed + 3600000
  AND b.departed BETWEEN w.observed - 3600000 AND w.observed + 3600000
  AND b.departed BETWEEN a.departed - 3600000 AND a.departed + 3600000
