"""The rules in their plainest form, in memory: what the database must do is compared with them."""
