"""Content that is loaded under another name, or that appears in several files."""
