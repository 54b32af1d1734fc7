"""Running sessions: take a delivery, load it, return it; in this process or in Spark tasks."""
