"""Rows that a program gives."""
