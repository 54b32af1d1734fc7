"""How Airflow reaches Onceload: operators, hooks, listener, pages."""
