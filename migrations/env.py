"""Alembic's way in: run the migrations on the connection that `onceload.schema` hands over."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table="schema_version",
    version_table_schema="onceload",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
