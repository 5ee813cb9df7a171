"""ControlRecordTypeSchema."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field
from pybroker.protocol.types import int16


class ControlRecordTypeSchema(Message, kind="data", versions="0"):
    type: int16 = field("0+")
