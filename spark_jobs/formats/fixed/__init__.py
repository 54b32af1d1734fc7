"""Lines of fixed width."""
