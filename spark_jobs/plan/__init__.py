"""What there is to load: which files, from which byte, in which deliveries."""
