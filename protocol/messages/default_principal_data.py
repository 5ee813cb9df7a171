"""DefaultPrincipalData."""

from __future__ import annotations

from pybroker.protocol.schema import Message, field


class DefaultPrincipalData(Message, kind="data", versions="0", flexible="0+"):
    type: str = field("0+")
    name: str = field("0+")
    token_authenticated: bool = field("0+")
