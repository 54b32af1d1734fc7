"""A batch that is staged and published as a whole, by one call or by two."""
