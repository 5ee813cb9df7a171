"""EndTxnMarker."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int32


class EndTxnMarker(Message, kind="data", versions="0"):
    coordinator_epoch: int32 = field("0+")
