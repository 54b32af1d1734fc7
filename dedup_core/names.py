"""The ids and names that pass between the parts, so that a row count cannot pass for a sequence id."""

from typing import NewType

ProducerId = NewType("ProducerId", int)
SessionName = NewType("SessionName", str)
Epoch = NewType("Epoch", int)
DeliveryId = NewType("DeliveryId", int)
Position = NewType("Position", int)
Batch = NewType("Batch", str)
Version = NewType("Version", int)
