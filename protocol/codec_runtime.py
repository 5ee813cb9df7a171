"""What compiled encoders and decoders call: the few steps that are too long to write out in place."""

from __future__ import annotations

import struct


class DecodeError(ValueError):
    """Bytes that do not follow the schema: cut short, a length out of range, null where none may be."""


PRIMITIVES: dict[str, str] = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "uint32": "I", "float64": "d",
    "Uuid": "16s",
}  # fmt: skip
"""struct format of every fixed-width type."""


def width(formats: str) -> int:
    """Bytes that a run of struct formats takes."""
    return struct.calcsize(">" + formats)


def long_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of more than one byte, at most five; returns (value, position behind it)."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise DecodeError("varint longer than five bytes")
    return (value if value < 1 << 31 else value - (1 << 32)), position


def put_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def null_error(name: str) -> DecodeError:
    return DecodeError(f"non-nullable field {name} was serialized as null")


def read_fixed_array(buffer: memoryview, position: int, count: int, code: str, size: int) -> tuple[list[int], int]:
    """`count` numbers of one struct format, checked against what is left before anything is allocated."""
    end = position + count * size
    if end > len(buffer):
        raise DecodeError(f"array of {count} elements is longer than the message")
    return list(struct.unpack_from(f">{count}{code}", buffer, position)), end


def read_tags(buffer: memoryview, position: int, count: int) -> tuple[list[tuple[int, bytes]], int]:
    """A tagged section of `count` fields of which the schema knows none."""
    tags: list[tuple[int, bytes]] = []
    for _ in range(count):
        tag, position = long_uvarint(buffer, position)
        size, position = long_uvarint(buffer, position)
        if size < 0 or position + size > len(buffer):
            raise DecodeError(f"tagged field {tag} is longer than the message")
        tags.append((tag, bytes(buffer[position : position + size])))
        position += size
    return tags, position


def put_tags(out: bytearray, tags: list[tuple[int, bytes | bytearray]]) -> None:
    """Append a tagged section, in ascending order of tags as Kafka writes it."""
    put_uvarint(out, len(tags))
    for tag, value in sorted(tags, key=lambda pair: pair[0]):
        put_uvarint(out, tag)
        put_uvarint(out, len(value))
        out += value
