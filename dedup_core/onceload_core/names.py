"""Distinct types for ids and names, so that a row count cannot be passed as a sequence id."""

from typing import NewType

ProducerId = NewType("ProducerId", int)
SessionName = NewType("SessionName", str)
Epoch = NewType("Epoch", int)
DeliveryId = NewType("DeliveryId", int)
Position = NewType("Position", int)
Batch = NewType("Batch", str)
Version = NewType("Version", int)
