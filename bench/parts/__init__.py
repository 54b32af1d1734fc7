"""The parts of `python -m bench loads`, each a section of its page."""
