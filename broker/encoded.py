"""A response that a handler has encoded itself, from pieces that it keeps."""

from __future__ import annotations

from typing import Any


class EncodedResponse:
    """What a handler may return in place of its response message: the body in the request's version, without size and
    header. `parts` are bytes-like objects."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
