"""Sessions in processes of this machine."""
