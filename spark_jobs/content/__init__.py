"""Content that is loaded under another name, or twice at once."""
