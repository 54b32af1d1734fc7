"""Formats: complete records in, Arrow with sequence ids out."""
