"""The console: pages that show the state of all loads, in Airflow and by themselves."""
