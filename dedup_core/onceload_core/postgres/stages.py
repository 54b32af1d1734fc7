"""Batches whose stage the server has lost: nothing can be published, so their claims hold nothing."""

from sqlalchemy import TextClause, text

from onceload_core.postgres.connection import statements

_LOST = statements("stages.sql")["lost"].text


def with_lost(statement: TextClause) -> TextClause:
    """A statement that treats the claims of these batches as ended."""
    return text(statement.text.replace("{lost}", _LOST))
