"""Rows into Postgres: SQL, binary COPY, the target, rows that the server refuses."""
