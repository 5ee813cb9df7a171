"""A second, independent codec: it walks the recorded schemas at run time and shares no code with pybroker.protocol.

Structs are dicts by the schema's field names, arrays are lists, bytes and records are bytes, a uuid is 16 bytes.
A field left out takes the schema's default; one that the version does not have is not sent.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.support.data import schemas

NUMBERS = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "float64": ">d",
}
EMPTY: dict[str, Any] = {"string": "", "bytes": b"", "records": None, "uuid": bytes(16), "bool": False, "float64": 0.0}


class SchemaError(Exception):
    """A value or a frame that does not fit its schema."""


@dataclass(frozen=True)
class Versions:
    """A span of versions, both ends included; `last` None is open, first > last is none."""

    first: int
    last: int | None

    def __contains__(self, version: int) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)

    @classmethod
    def parse(cls, text: str | None) -> Versions:
        if text is None or text == "none":
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), None)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


@dataclass
class Field:
    """One field of a message: what its schema says, parsed."""

    name: str
    type: str
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int | None
    flexible: Versions | None
    default: Any
    fields: list[Field] = field(default_factory=list)

    @property
    def element(self) -> str | None:
        return self.type[2:] if self.type.startswith("[]") else None

    @classmethod
    def parse(cls, raw: dict[str, Any], structs: dict[str, Any]) -> Field:
        kind = raw["type"]
        inner = raw.get("fields", structs.get(kind.removeprefix("[]"), []))
        return cls(
            raw["name"],
            kind,
            Versions.parse(raw.get("versions", raw.get("taggedVersions"))),
            Versions.parse(raw.get("nullableVersions")),
            Versions.parse(raw.get("taggedVersions")),
            raw.get("tag"),
            Versions.parse(raw["flexibleVersions"]) if "flexibleVersions" in raw else None,
            _default(kind, raw.get("default", "")),
            [cls.parse(each, structs) for each in inner],
        )


def _default(kind: str, text: Any) -> Any:
    if text in ("", None):  # JSON's null is no default; the text "null" is
        return [] if kind.startswith("[]") else EMPTY.get(kind, 0 if kind in NUMBERS else {})
    if text == "null":
        return None
    if kind == "bool":
        return str(text).lower() == "true"
    if kind == "float64":
        return float(text)
    return int(str(text), 0) if kind in NUMBERS else text


@dataclass
class Message:
    """A request, response, header or record type."""

    name: str
    kind: str
    api_key: int | None
    versions: Versions
    flexible: Versions
    fields: list[Field]
    unstable: bool  # the highest version is not served by default

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Message:
        structs = {each["name"]: each["fields"] for each in raw.get("commonStructs", [])}
        return cls(
            raw["name"],
            raw["type"],
            raw.get("apiKey"),
            Versions.parse(raw["validVersions"]),
            Versions.parse(raw.get("flexibleVersions")),
            [Field.parse(each, structs) for each in raw["fields"]],
            raw.get("latestVersionUnstable", False),
        )


@cache
def messages(release: str) -> dict[str, Message]:
    return {name: Message.parse(raw) for name, raw in schemas(release).items()}


@cache
def api_keys() -> dict[str, int]:
    """API name (without Request) -> key, of both releases."""
    return {
        name.removesuffix("Request"): message.api_key
        for release in ("3.9.2", "4.3.1")
        for name, message in messages(release).items()
        if message.kind == "request" and message.api_key is not None
    }


@cache
def api_name(key: int) -> str:
    return next(name for name, number in api_keys().items() if number == key)


@cache
def _by_key(release: str, kind: str) -> dict[int, Message]:
    kept = messages(release).values()
    return {each.api_key: each for each in kept if each.kind == kind and each.api_key is not None}


@cache
def api_message(api: int | str, version: int, kind: str, release: str | None = None) -> Message:
    """The schema of an API's Request or Response; of the older release where it knows the version."""
    key = api if isinstance(api, int) else api_keys()[api]
    order = (release,) if release else ("3.9.2", "4.3.1")
    known = [_by_key(each, kind.lower())[key] for each in order if key in _by_key(each, kind.lower())]
    if not known:
        raise SchemaError(f"no such message: {api} {kind}")
    return next((message for message in known if version in message.versions), known[-1])


# ------------------------------------------------------------------ writing
def uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def varint(number: int) -> bytes:
    return uvarint((number << 1 ^ number >> 63) & 0xFFFFFFFFFFFFFFFF)


def _length(size: int, width: str, flexible: bool) -> bytes:
    return uvarint(size + 1) if flexible else struct.pack(width, size)


def _encode_value(spec: Field, kind: str, value: Any, version: int, flexible: bool, element: bool = False) -> bytes:
    if spec.flexible is not None:
        flexible = version in spec.flexible
    if kind in NUMBERS:
        return struct.pack(NUMBERS[kind], value)
    if kind == "bool":
        return b"\1" if value else b"\0"
    if kind == "uuid":
        return bytes(value)
    if kind == "string" or kind in ("bytes", "records") or kind.startswith("[]"):
        width = ">h" if kind == "string" else ">i"
        if value is None:
            if kind not in ("bytes", "records") and (element or version not in spec.nullable):
                raise SchemaError(f"{spec.name} must not be null in version {version}")
            return _length(-1, width, flexible)
        if kind.startswith("[]"):
            items = [_encode_value(spec, kind[2:], each, version, flexible, True) for each in value]
            return _length(len(items), width, flexible) + b"".join(items)
        raw = value.encode() if isinstance(value, str) else bytes(value)
        return _length(len(raw), width, flexible) + raw
    if not element and version in spec.nullable:
        if value is None:
            return b"\xff"
        return b"\1" + encode_fields(spec.fields, value, version, flexible)
    return encode_fields(spec.fields, value or {}, version, flexible)


def _is_struct(spec: Field) -> bool:
    return bool(spec.fields) and not spec.element


def encode_fields(fields: list[Field], values: dict[str, Any], version: int, flexible: bool) -> bytes:
    """A struct's bytes; values["_tags"] may hold further raw tagged fields {tag: bytes}."""
    out = bytearray()
    tags = dict(values.get("_tags", {}))
    for spec in fields:
        if version not in spec.versions:
            continue
        value = values.get(spec.name, spec.default)
        if spec.tag is not None and version in spec.tagged:
            if spec.name in values and value != spec.default:
                null = value is None and _is_struct(spec)  # which is -1 elsewhere
                tags[spec.tag] = b"\0" if null else _encode_value(spec, spec.type, value, version, flexible)
            continue
        if value is None and spec.name not in values and version not in spec.nullable:
            value = [] if spec.element else EMPTY.get(spec.type, {})
        out += _encode_value(spec, spec.type, value, version, flexible)
    if flexible:
        out += uvarint(len(tags))
        for tag in sorted(tags):
            out += uvarint(tag) + uvarint(len(tags[tag])) + tags[tag]
    return bytes(out)


# ------------------------------------------------------------------ reading
class Reader:
    """A cursor over a frame."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, size: int) -> bytes:
        start, end = self.position, self.position + size
        if size < 0 or end > len(self.data):
            raise SchemaError(f"{size} bytes wanted at {start} of {len(self.data)}")
        self.position = end
        return self.data[start:end]

    def number(self, kind: str) -> Any:
        return struct.unpack(NUMBERS[kind], self.take(struct.calcsize(NUMBERS[kind])))[0]

    def uvarint(self) -> int:
        shift = result = 0
        while True:
            byte = self.take(1)[0]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7

    def varint(self) -> int:
        raw = self.uvarint()
        return raw >> 1 ^ -(raw & 1)

    def length(self, kind: str, flexible: bool) -> int:
        return self.uvarint() - 1 if flexible else int(self.number(kind))

    def tags(self) -> dict[int, bytes]:
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}


def _decode_value(reader: Reader, spec: Field, kind: str, version: int, flexible: bool, element: bool = False) -> Any:
    if spec.flexible is not None:
        flexible = version in spec.flexible
    if kind in NUMBERS:
        return reader.number(kind)
    if kind == "bool":
        return reader.take(1) != b"\0"
    if kind == "uuid":
        return reader.take(16)
    if kind.startswith("[]"):
        count = reader.length("int32", flexible)
        if count > len(reader.data):
            raise SchemaError(f"array of {count} in {len(reader.data)} bytes")
        return (
            None
            if count < 0
            else [_decode_value(reader, spec, kind[2:], version, flexible, True) for _ in range(count)]
        )
    if kind in ("string", "bytes", "records"):
        size = reader.length("int16" if kind == "string" else "int32", flexible)
        raw = None if size < 0 else reader.take(size)
        return raw.decode("utf-8", "backslashreplace") if raw is not None and kind == "string" else raw
    if not element and version in spec.nullable and reader.number("int8") < 0:
        return None
    return decode_fields(reader, spec.fields, version, flexible)


def decode_fields(reader: Reader, fields: list[Field], version: int, flexible: bool) -> dict[str, Any]:
    """A struct as a dict; tagged fields only where they were sent, unknown ones under "_tags"."""
    values: dict[str, Any] = {}
    tagged: dict[int, Field] = {}
    for spec in fields:
        if version not in spec.versions:
            continue
        if spec.tag is not None and version in spec.tagged:
            tagged[spec.tag] = spec
        else:
            values[spec.name] = _decode_value(reader, spec, spec.type, version, flexible)
    for tag, raw in reader.tags().items() if flexible else ():
        if tag in tagged and raw == b"\0" and _is_struct(tagged[tag]):
            values[tagged[tag].name] = None
        elif tag in tagged:
            values[tagged[tag].name] = _decode_value(Reader(raw), tagged[tag], tagged[tag].type, version, flexible)
        else:
            values.setdefault("_tags", {})[tag] = raw
    return values


# ------------------------------------------------------------------ requests and responses
def request_header(
    api: int | str,
    version: int,
    correlation_id: int = 0,
    client_id: str | None = "test",
    tags: dict[int, bytes] | None = None,
) -> bytes:
    key = api if isinstance(api, int) else api_keys()[api]
    out = struct.pack(">hhi", key, version, correlation_id)
    if key == 7 and version == 0:
        return out
    out += _length(-1, ">h", False) if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    if version in api_message(api, version, "Request").flexible:
        out += uvarint(len(tags or {}))
        out += b"".join(uvarint(tag) + uvarint(len(raw)) + raw for tag, raw in sorted((tags or {}).items()))
    return out


def request_body(
    api: int | str, version: int, values: dict[str, Any] | None = None, release: str | None = None
) -> bytes:
    message = api_message(api, version, "Request", release)
    return encode_fields(message.fields, values or {}, version, version in message.flexible)


def encode_request(
    api: int | str,
    version: int,
    values: dict[str, Any] | None = None,
    correlation_id: int = 0,
    client_id: str | None = "test",
) -> bytes:
    """The frame without its size."""
    return request_header(api, version, correlation_id, client_id) + request_body(api, version, values)


def decode_response(
    api: int | str, version: int, frame: bytes, release: str | None = None
) -> tuple[int, dict[str, Any]]:
    """(correlation id, body); SchemaError where bytes are missing or left over."""
    message = api_message(api, version, "Response", release)
    reader = Reader(frame)
    correlation_id = reader.number("int32")
    flexible = version in message.flexible
    if flexible and message.api_key != 18:
        reader.tags()
    body = decode_fields(reader, message.fields, version, flexible)
    if reader.position != len(frame):
        raise SchemaError(f"{len(frame) - reader.position} bytes left over in {message.name} v{version}")
    return correlation_id, body


def decode_request(frame: bytes, release: str | None = None) -> tuple[int, int, dict[str, Any]]:
    """(api key, version, body) of a request frame; bytes behind the body are ignored, as brokers do."""
    reader = Reader(frame)
    key, version, _ = (reader.number(kind) for kind in ("int16", "int16", "int32"))
    message = api_message(key, version, "Request", release)
    flexible = version in message.flexible
    if (key, version) != (7, 0):
        reader.take(max(0, reader.number("int16")))
    if flexible:
        reader.tags()
    return key, version, decode_fields(reader, message.fields, version, flexible)


def encode_data(name: str, version: int, values: dict[str, Any]) -> bytes:
    """A record-type message such as ConsumerProtocolSubscription, behind its 2-byte version."""
    message = next(messages(release)[name] for release in ("3.9.2", "4.3.1") if name in messages(release))
    return struct.pack(">h", version) + encode_fields(message.fields, values, version, version in message.flexible)


def to_json(value: Any, fields: list[Field], cut: int | None = None) -> Any:
    """A struct as plain JSON: uuids as base64 text, bytes as 0x.. (cut after `cut` bytes)."""
    specs = {spec.name: spec for spec in fields}
    return (
        None
        if value is None
        else {
            name: {str(tag): "0x" + raw.hex() for tag, raw in each.items()}
            if name == "_tags"
            else _json(each, specs[name], specs[name].type, cut)
            for name, each in value.items()
        }
    )


def _json(value: Any, spec: Field, kind: str, cut: int | None) -> Any:
    if value is None:
        return None
    if kind.startswith("[]"):
        return [_json(each, spec, kind[2:], cut) for each in value]
    if kind == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if kind in ("bytes", "records"):
        whole = cut is None or len(value) <= cut
        return "0x" + value.hex() if whole else f"0x{value[:cut].hex()}..({len(value)} bytes)"
    return to_json(value, spec.fields, cut) if isinstance(value, dict) else value


def response_json(api: int | str, version: int, body: Any, cut: int | None = 24) -> Any:
    return json.loads(json.dumps(to_json(body, api_message(api, version, "Response").fields, cut)))
