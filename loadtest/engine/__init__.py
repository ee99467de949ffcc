"""The load engine: arrivals by rate inside plain `locust -f`, and every arrival a row."""
