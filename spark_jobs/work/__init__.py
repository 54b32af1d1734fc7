"""Sessions at work: take a delivery, load it, give it back; in this process or in Spark's tasks."""
