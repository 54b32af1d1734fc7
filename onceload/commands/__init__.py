"""The commands, one file per group; each file adds its commands to the command line."""
