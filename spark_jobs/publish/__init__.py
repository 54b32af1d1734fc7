"""One commit for a whole batch: its rows and its proof."""
