"""Files and objects: addresses, names and reading."""
