"""Distinct types for ids and names, so that a row count cannot be passed as a sequence id."""

from datetime import datetime
from typing import NamedTuple, NewType

ProducerId = NewType("ProducerId", int)
SessionName = NewType("SessionName", str)
Epoch = NewType("Epoch", int)
DeliveryId = NewType("DeliveryId", int)
Position = NewType("Position", int)
Batch = NewType("Batch", str)


class Version(NamedTuple):
    """A version of a declaration.

    The number alone may be assigned twice: a failover may lose the commit that took it first.
    """

    number: int
    #: By the clock of the database. None: nothing was declared yet.
    taken_at: datetime | None
