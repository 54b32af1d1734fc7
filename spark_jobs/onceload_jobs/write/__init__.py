"""Write rows to Postgres: SQL, binary COPY, the target, refused rows."""
