"""Folders of the project that are not packages. In a checkout they are beside this package, in a wheel inside it."""

from pathlib import Path


def shipped(folder: str) -> Path:
    inside = Path(__file__).resolve().parent / folder
    return inside if inside.is_dir() else inside.parents[1] / folder
