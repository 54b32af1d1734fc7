"""The commands, one file per group; each adds its own to the command line."""
