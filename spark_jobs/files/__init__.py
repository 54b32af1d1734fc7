"""Files and objects: where they are, what they are called, how their bytes are read."""
