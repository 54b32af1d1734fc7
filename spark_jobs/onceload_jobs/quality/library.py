"""Great Expectations. Its import takes seconds, so an audit imports this module late."""

import logging
import os

# Before its import: otherwise it sends usage data, and logs each of its functions.
os.environ["GX_ANALYTICS_ENABLED"] = "false"
logging.getLogger("great_expectations").setLevel(logging.WARNING)

import great_expectations as gx  # noqa: E402

__all__ = ["gx"]
