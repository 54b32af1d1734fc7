"""Publish a whole batch, its rows and its proof, in one commit."""
