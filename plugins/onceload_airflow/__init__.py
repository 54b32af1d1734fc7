"""How Airflow reaches Onceload: operators, hooks, triggers, pages."""
