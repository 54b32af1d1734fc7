"""The folders of the project that are no packages: inside this one where it is installed, beside it in a checkout."""

from pathlib import Path


def shipped(folder: str) -> Path:
    inside = Path(__file__).resolve().parent / folder
    return inside if inside.is_dir() else inside.parents[1] / folder
