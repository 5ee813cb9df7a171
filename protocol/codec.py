"""The schema compiler: from a declaration and a version to one specialised encoder and one decoder.

Both are straight-line Python made once per (message, version): neighbouring fixed-width fields become a single struct
call and nested structs are written out in place, so that decoding a Produce costs a few microseconds. The source is
registered with linecache, so a traceback shows it.

Shapes: a decoder is `f(buffer, position) -> (message, position)` over a memoryview; an encoder is
`f(message) -> parts`, a list of bytes-like objects in which each `Records` value is a part of its own, never copied.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable
from typing import Any, TypeVar

from pybroker.protocol.codec_decoder import decoder_source
from pybroker.protocol.codec_encoder import encoder_source
from pybroker.protocol.codec_runtime import DecodeError
from pybroker.protocol.schema import Struct

__all__ = ["DecodeError", "decode", "decoder", "encode", "encode_bytes", "encoder"]

Decoder = Callable[[memoryview, int], tuple[Any, int]]
Encoder = Callable[[Any], list[Any]]
S = TypeVar("S", bound=Struct)

_decoders: dict[tuple[type[Struct], int], Decoder] = {}
_encoders: dict[tuple[type[Struct], int], Encoder] = {}

# What compiled code raises on bytes that are not the message they claim to be.
_MALFORMED = (struct.error, IndexError, ValueError, OverflowError, MemoryError)


def decoder(cls: type[Struct], version: int) -> Decoder:
    """The compiled decoder; wrap its call as `decode` does, since malformed bytes surface as assorted exceptions."""
    found = _decoders.get((cls, version))
    if found is None:
        found = _build(*decoder_source(cls, version), name=f"decode {cls.__name__} v{version}")
        _decoders[cls, version] = found
    return found


def encoder(cls: type[Struct], version: int) -> Encoder:
    """The compiled encoder."""
    found = _encoders.get((cls, version))
    if found is None:
        found = _build(*encoder_source(cls, version), name=f"encode {cls.__name__} v{version}")
        _encoders[cls, version] = found
    return found


def decode(cls: type[S], version: int, buffer: bytes | bytearray | memoryview, position: int = 0) -> tuple[S, int]:
    """Decode one message; returns it with the position behind it. Raises DecodeError on malformed bytes."""
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    try:
        message, end = decoder(cls, version)(view, position)
    except _MALFORMED as error:
        raise DecodeError(f"{cls.__name__} v{version}: {error}") from error
    return message, end


def encode(message: Struct, version: int) -> list[Any]:
    """Encode into parts: bytes-like objects, with each Records value as its own part."""
    return encoder(type(message), version)(message)


def encode_bytes(message: Struct, version: int) -> bytes:
    """Encode into one bytes object (copies records; for requests, tests and records on disk)."""
    return b"".join(encode(message, version))


def _build(source: str, scope: dict[str, Any], *, name: str) -> Any:
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), scope)
    return scope["run"]
