"""Onceload's Airflow plugin: operators, hooks, triggers, pages."""
