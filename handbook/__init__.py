"""The pages that are made from the code: `make docs` adds them to those in docs/."""
