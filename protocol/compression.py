"""The five codecs of record batches, each as Kafka's clients write them, with a bound on what comes out.

| codec | bytes on the wire |
|---|---|
| gzip | RFC 1952; several members may follow one another |
| snappy | xerial's frame: 82 53 4e 41 50 50 59 00, version 1, compatible version 1, then blocks of int32 size + raw snappy; a lone raw snappy block is read as well |
| lz4 | the LZ4 frame format, independent blocks; in messages of magic 0 the header checksum wrongly covers the frame magic too (KIP-57) |
| zstd | RFC 8878 (KIP-110) |

The libraries are imported on first use: a broker that only passes batches through never loads them.

Large blocks are unpacked in threads, and meanwhile the event loop needs the interpreter lock. The libraries let go of
it while they compute but not while they copy, so they are fed and emptied in pieces; `bytes.join` lets go of it too.
"""  # noqa: E501

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from struct import error as StructError

from pybroker.protocol.errors import Errors, KafkaError

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """Ids as in the attributes of a batch, names as in compression.type (where none is `uncompressed`)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# No client sends anything near this in one batch; it is what one hostile batch can make us hold.
DEFAULT_LIMIT = 128 << 20

_INPUT = 64 << 10  # given to a library at once: it copies what it has not used yet when its output is full
_CHUNK = 1 << 20  # taken from it at once
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # no time, unknown system: what Java writes
_GZIP_TAIL = Struct("<II")
_MAX_GZIP_MEMBERS = 1_000  # going on to the next copies what is left, so tiny ones without end would be quadratic
_INT32 = Struct(">i")
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK = 32 << 10
_SNAPPY_MAX_RATIO = 64  # one 3-byte copy yields at most 64 bytes, so a larger claim is a lie
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE = 0x08
_LZ4_FAST = 9  # Kafka's default level, which stands for the fast compressor


class CorruptRecords(KafkaError):
    """Compressed data that can't be read. Kafka answers UNKNOWN_SERVER_ERROR, the default code here."""

    def __init__(self, message: str, code: Errors = Errors.UNKNOWN_SERVER_ERROR) -> None:
        super().__init__(code, message)


def codec_of(codec_id: int) -> Codec:
    """The codec of an id 0-7 in a batch's attributes; CorruptRecords (UNKNOWN_SERVER_ERROR) for 5, 6 and 7."""
    try:
        return Codec(codec_id)
    except ValueError:
        raise CorruptRecords(f"Unknown compression type id: {codec_id}") from None


def compress(codec: int, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """`data` as one compressed block. level None is the codec's default; magic 0 gets lz4's old header checksum."""
    return _COMPRESSORS[codec_of(codec)](data, level, magic)


def decompress(codec: int, data: Buffer, limit: int = DEFAULT_LIMIT, *, magic: int = 2) -> bytes:
    """What the block holds, at most `limit` bytes.

    Raises CorruptRecords: UNKNOWN_SERVER_ERROR for damaged data, MESSAGE_TOO_LARGE for more than the limit (found
    while decompressing: no more than about a mebibyte above it is ever held). A gzip or zstd stream that merely ends
    early gives what there is, as it does in Kafka, whose record reader then misses the rest.
    """
    return _DECOMPRESSORS[codec_of(codec)](data, limit, magic)


def _too_large(limit: int) -> CorruptRecords:
    return CorruptRecords(f"The compressed records hold more than {limit} bytes", Errors.MESSAGE_TOO_LARGE)


class _Output:
    """What comes out of a block, in pieces; CorruptRecords where it is more than `limit` bytes."""

    __slots__ = ("_limit", "_pieces", "room")

    def __init__(self, limit: int) -> None:
        self.room = self._limit = limit
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        self.room -= len(piece)
        if self.room < 0:
            raise _too_large(self._limit)
        self._pieces.append(piece)

    def joined(self) -> bytes:
        return b"".join(self._pieces)


# --- none


def _copy(data: Buffer, level: int | None, magic: int) -> bytes:
    return bytes(data)


def _copy_bounded(data: Buffer, limit: int, magic: int) -> bytes:
    if len(data) > limit:
        raise _too_large(limit)
    return bytes(data)


# --- gzip


def _gzip(data: Buffer, level: int | None, magic: int) -> bytes:
    packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, -zlib.MAX_WBITS)
    tail = _GZIP_TAIL.pack(zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"".join((_GZIP_HEADER, packer.compress(data), packer.flush(), tail))


def _gunzip(data: Buffer, limit: int, magic: int) -> bytes:
    view, at = memoryview(data), 0
    if view[:2] != _GZIP_MAGIC:
        raise CorruptRecords("Not in GZIP format")
    out = _Output(limit)
    for _ in range(_MAX_GZIP_MEMBERS):
        at = _gunzip_member(view, at, out)
        if view[at : at + 2] != _GZIP_MAGIC:
            return out.joined()
    raise CorruptRecords(f"Failed to decompress record stream: more than {_MAX_GZIP_MEMBERS} gzip members")


def _gunzip_member(view: memoryview, at: int, out: _Output) -> int:
    """Unpacks the member at `at`, or what there is of it; the position behind it."""
    unpacker = zlib.decompressobj(31)
    while not unpacker.eof:
        piece: Buffer = unpacker.unconsumed_tail
        if not piece:
            piece = view[at : at + _INPUT]
            at += len(piece)
        try:
            unpacked = unpacker.decompress(piece, min(_CHUNK, out.room + 1))
        except zlib.error as error:
            raise CorruptRecords(f"Failed to decompress record stream: {error}") from error
        if not piece and not unpacked:
            break
        out.add(unpacked)
    return at - len(unpacker.unused_data)


# --- snappy


def _snap(data: Buffer, level: int | None, magic: int) -> bytes:
    import snappy

    view = memoryview(data)
    out = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = snappy.compress(bytes(view[start : start + _XERIAL_BLOCK]))
        out += _INT32.pack(len(block)), block
    return b"".join(out)


def _unsnap(data: Buffer, limit: int, magic: int) -> bytes:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _unsnap_block(data, limit)
    view = memoryview(data)
    at, total = len(_XERIAL_HEADER), 0
    pieces: list[bytes] = []
    while at < len(view):
        try:
            size = _INT32.unpack_from(view, at)[0]
        except StructError:
            raise CorruptRecords("Failed to decompress record stream: a snappy block ends early") from None
        if bytes(view[at : at + 8]) == _XERIAL_MAGIC:  # streams joined one after another
            at += len(_XERIAL_HEADER)
            continue
        at += 4
        if size < 0 or size > len(view) - at:
            raise CorruptRecords(f"Failed to decompress record stream: invalid snappy block size {size}")
        piece = _unsnap_block(view[at : at + size], limit - total)
        pieces.append(piece)
        total += len(piece)
        at += size
    return b"".join(pieces)


def _unsnap_block(block: Buffer, limit: int) -> bytes:
    import snappy

    claimed = shift = 0
    for byte in block[:5]:
        claimed |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if claimed > _SNAPPY_MAX_RATIO * len(block):
        raise CorruptRecords("Failed to decompress record stream: FAILED_TO_UNCOMPRESS(5)")
    if claimed > limit:
        raise _too_large(limit)
    try:
        return bytes(snappy.decompress(bytes(block)))
    except snappy.UncompressError as error:
        raise CorruptRecords("Failed to decompress record stream: FAILED_TO_UNCOMPRESS(5)") from error


# --- lz4


def _lz4(data: Buffer, level: int | None, magic: int) -> bytes:
    import lz4.frame

    frame = lz4.frame.compress(
        data,
        compression_level=0 if level is None or level == _LZ4_FAST else level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,  # Java's reader refuses dependent blocks
        content_checksum=False,
        store_size=False,
    )
    if magic:
        return bytes(frame)
    head = _lz4_head(frame, wrong=True)
    return head + memoryview(frame)[len(head) :]


def _unlz4(data: Buffer, limit: int, magic: int) -> bytes:
    import lz4.frame

    view = memoryview(data)
    if view[:4] != _LZ4_MAGIC:
        raise CorruptRecords("Failed to decompress record stream: Stream unsupported (invalid magic bytes)")
    head = b"" if magic else _lz4_head(view, wrong=False)
    unpacker = lz4.frame.LZ4FrameDecompressor()
    out = _Output(limit)
    try:
        if head:
            unpacker.decompress(head)
        for start in range(len(head), len(view), _INPUT):
            unpacked = unpacker.decompress(view[start : start + _INPUT], _CHUNK)
            while unpacked:
                out.add(unpacked)
                unpacked = b"" if unpacker.eof or unpacker.needs_input else unpacker.decompress(b"", _CHUNK)
            if unpacker.eof:
                return out.joined()
    except RuntimeError as error:
        raise CorruptRecords(f"Failed to decompress record stream: {error}") from error
    raise CorruptRecords("Failed to decompress record stream: Stream ended prematurely")


def _lz4_head(frame: Buffer, *, wrong: bool) -> bytes:
    """The frame's header with its checksum computed over magic and descriptor (wrong, magic 0) or the descriptor."""
    flags = frame[4] if len(frame) > 4 else 0
    end = 4 + 2 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    if len(frame) <= end:
        raise CorruptRecords("Failed to decompress record stream: Stream ended prematurely")
    checksum = (_xxh32(bytes(frame[0 if wrong else 4 : end])) >> 8) & 0xFF
    return bytes(frame[:end]) + bytes((checksum,))


def _xxh32(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes, all that an lz4 frame's descriptor can be."""
    acc = 374761393 + len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        acc = (acc + int.from_bytes(data[at : at + 4], "little") * 3266489917) & 0xFFFFFFFF
        acc = ((acc << 17 | acc >> 15) * 668265263) & 0xFFFFFFFF
    for byte in data[whole:]:
        acc = (acc + byte * 374761393) & 0xFFFFFFFF
        acc = ((acc << 11 | acc >> 21) * 2654435761) & 0xFFFFFFFF
    acc = ((acc ^ acc >> 15) * 2246822519) & 0xFFFFFFFF
    acc = ((acc ^ acc >> 13) * 3266489917) & 0xFFFFFFFF
    return acc ^ acc >> 16


# --- zstd


def _zstd(data: Buffer, level: int | None, magic: int) -> bytes:
    import zstandard

    return bytes(zstandard.ZstdCompressor(level=3 if level is None else level).compress(data))


def _unzstd(data: Buffer, limit: int, magic: int) -> bytes:
    import zstandard

    out = _Output(limit)
    try:
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            while piece := reader.read(_CHUNK):
                out.add(piece)
    except zstandard.ZstdError as error:
        raise CorruptRecords(f"Failed to decompress record stream: {error}") from error
    return out.joined()


_COMPRESSORS: dict[Codec, Callable[[Buffer, int | None, int], bytes]] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snap,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESSORS: dict[Codec, Callable[[Buffer, int, int], bytes]] = {
    Codec.NONE: _copy_bounded,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnap,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
