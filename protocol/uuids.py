"""Kafka's Uuid (KIP-516): 16 raw bytes on the wire, 22 characters of unpadded base64url as text."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode

ZERO_UUID = bytes(16)
_RESERVED = frozenset({ZERO_UUID, bytes(15) + b"\x01"})


def random_uuid() -> bytes:
    """A new version-4 id; never a reserved one, and its text never starts with '-', which tools take for an option."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        value = bytes(raw)
        if value not in _RESERVED and not uuid_to_text(value).startswith("-"):
            return value


def uuid_to_text(value: bytes) -> str:
    """22 characters of base64url without padding."""
    return urlsafe_b64encode(value).decode("ascii").rstrip("=")


def uuid_from_text(text: str) -> bytes:
    """The 16 bytes of a 22-character id; ValueError where it is not one."""
    if len(text) != 22:
        raise ValueError(f"a uuid has 22 characters, not {len(text)}: {text!r}")
    try:
        value = urlsafe_b64decode(text + "==")
    except ValueError as error:
        raise ValueError(f"not a base64url uuid: {text!r}") from error
    if len(value) != 16:
        raise ValueError(f"not a base64url uuid: {text!r}")
    return value
