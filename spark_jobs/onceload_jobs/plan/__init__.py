"""Plan a load: which files, from which byte, in which deliveries."""
