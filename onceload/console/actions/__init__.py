"""The actions of people: each asks with its numbers before it changes anything."""
