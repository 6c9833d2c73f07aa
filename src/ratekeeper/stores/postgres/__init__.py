"""State on Postgres: the rules run in the server, as functions beside the table."""
