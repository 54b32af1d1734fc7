"""JSON documents: one array of objects, or one object a file."""
