"""Writes the source of a decoder (see codec)."""

from __future__ import annotations

import struct
from typing import Any

from pybroker.protocol.codec_runtime import (
    PRIMITIVES,
    DecodeError,
    long_uvarint,
    null_error,
    read_fixed_array,
    read_tags,
    width,
)
from pybroker.protocol.schema import Field, Struct, default_factory, resolve

MOST_ELEMENTS = 1 << 21
"""Of all arrays and tagged sections of a message together. A broker's order about 200,000 partitions has 1.5 million;
two million empty elements take 4 MB on the wire, 200 MB in memory, and the event loop for seconds."""


def decoder_source(cls: type[Struct], version: int) -> tuple[str, dict[str, Any]]:
    """Source of `run(buf, pos)` and the names it needs."""
    writer = _Writer(version, cls.FLEXIBLE.__contains__(version) if hasattr(cls, "FLEXIBLE") else False)
    writer.line(1, f"end, left = len(buf), {MOST_ELEMENTS}")
    writer.struct(1, cls, "m")
    writer.line(1, "if pos > end: raise DecodeError('cut short')")
    writer.line(1, "return m, pos")
    return "\n".join(["def run(buf, pos):", *writer.lines]), writer.scope


class _Writer:
    """Collects lines; every value it makes gets a variable of its own (v1, v2, ...)."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.count = 0
        self.scope: dict[str, Any] = {
            "DecodeError": DecodeError, "long_uvarint": long_uvarint, "null_error": null_error,
            "read_fixed_array": read_fixed_array, "read_tags": read_tags, "memoryview": memoryview,
        }  # fmt: skip

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def name(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def constant(self, stem: str, value: object) -> str:
        name = self.name(stem)
        self.scope[name] = value
        return name

    # -- structs -----------------------------------------------------------------------------------------------

    def struct(self, depth: int, cls: type[Struct], target: str) -> None:
        """Read one struct into `target`."""
        new = self.constant("new", cls.__new__)
        self.line(depth, f"{target} = {new}({self.constant('cls', cls)})")
        run: list[Field] = []
        tagged: list[Field] = []
        for declared in cls.FIELDS:
            if self.version in declared.tagged:
                tagged.append(declared)
                self.set_default(depth, cls, declared, target)
            elif self.version not in declared.versions:
                self.set_default(depth, cls, declared, target)
            elif declared.type_text in PRIMITIVES:
                run.append(declared)
            else:
                self.fixed(depth, run, target)
                self.variable(depth, cls, declared, f"{target}.{declared.name}")
        self.fixed(depth, run, target)
        self.line(depth, f"{target}.unknown_tags = None")
        if self.flexible:
            self.tags(depth, cls, tagged, target)

    def set_default(self, depth: int, cls: type[Struct], declared: Field, target: str) -> None:
        if declared.makes_default:
            value = f"{self.constant('make', default_factory(cls, declared))}()"
        else:
            value = self.constant("default", declared.default)
        self.line(depth, f"{target}.{declared.name} = {value}")

    def fixed(self, depth: int, run: list[Field], target: str) -> None:
        """Neighbouring fixed-width fields: one struct call."""
        if not run:
            return
        formats = "".join(PRIMITIVES[f.type_text] for f in run)
        unpack = self.constant("unpack", struct.Struct(">" + formats).unpack_from)
        names = ", ".join(f"{target}.{f.name}" for f in run)
        self.line(depth, f"{names}{',' if len(run) == 1 else ''} = {unpack}(buf, pos)")
        self.line(depth, f"pos += {width(formats)}")
        run.clear()

    def tags(self, depth: int, cls: type[Struct], tagged: list[Field], target: str) -> None:
        count = self.name("n")
        self.uvarint(depth, count)
        self.line(depth, f"if {count}:")
        self.spend(depth + 1, count)
        if not tagged:
            self.line(depth + 1, f"{target}.unknown_tags, pos = read_tags(buf, pos, {count})")
            return
        tag, size, stop = self.name("tag"), self.name("size"), self.name("stop")
        self.line(depth + 1, f"for _ in range({count}):")
        self.uvarint(depth + 2, tag)
        self.uvarint(depth + 2, size)
        self.line(depth + 2, f"{stop} = pos + {size}")
        self.line(depth + 2, f"if {size} < 0 or {stop} > end: raise DecodeError('tagged field is cut short')")
        for index, declared in enumerate(tagged):
            self.line(depth + 2, f"{'elif' if index else 'if'} {tag} == {declared.tag}:")
            if declared.type_text in PRIMITIVES:
                self.fixed(depth + 3, [declared], target)
            else:
                self.variable(depth + 3, cls, declared, f"{target}.{declared.name}")
        self.line(depth + 2, "else:")
        self.line(depth + 3, f"if {target}.unknown_tags is None: {target}.unknown_tags = []")
        self.line(depth + 3, f"{target}.unknown_tags.append(({tag}, bytes(buf[pos:{stop}])))")
        self.line(depth + 2, f"pos = {stop}")

    def spend(self, depth: int, count: str) -> None:
        """So many elements more: a frame's bytes bound what it may announce, but not the memory that it takes."""
        self.line(depth, f"left -= {count}")
        self.line(depth, "if left < 0: raise DecodeError('more elements than a message may have')")

    # -- values ------------------------------------------------------------------------------------------------

    def uvarint(self, depth: int, target: str) -> None:
        self.line(depth, f"{target} = buf[pos]")
        self.line(depth, f"if {target} < 128: pos += 1")
        self.line(depth, f"else: {target}, pos = long_uvarint(buf, pos)")

    def length(self, depth: int, declared_flexible: bool, code: str) -> str:
        """Read a length; negative means null."""
        n = self.name("n")
        if declared_flexible:
            self.uvarint(depth, n)
            self.line(depth, f"{n} -= 1")
        else:
            unpack = self.constant("unpack", struct.Struct(">" + code).unpack_from)
            self.line(depth, f"{n}, = {unpack}(buf, pos)")
            self.line(depth, f"pos += {width(code)}")
        return n

    def variable(self, depth: int, cls: type[Struct], declared: Field, target: str) -> None:
        """A string, bytes, records, array or struct."""
        nullable = self.version in declared.nullable
        if declared.element is not None:
            self.array(depth, cls, declared, target, nullable)
        elif declared.type_text in ("str", "bytes", "Records"):
            flexible = self.flexible if declared.flexible is None else self.version in declared.flexible
            n = self.length(depth, flexible, "h" if declared.type_text == "str" else "i")
            self.blob(depth, declared.type_text, n, target, nullable, declared.name)
        else:
            self.nested(depth, resolve(cls, declared.type_text), target, nullable, self.version in declared.tagged)

    def blob(self, depth: int, kind: str, n: str, target: str, nullable: bool, name: str) -> None:
        stop = self.name("stop")
        view = f"buf[pos:{stop}]"
        value = {"str": f"str({view}, 'utf-8', 'replace')", "bytes": f"bytes({view})", "Records": view}[kind]
        self.line(depth, f"if {n} < 0:")
        self.line(depth + 1, f"{target} = None" if nullable else f"raise null_error({name!r})")
        self.line(depth, "else:")
        self.line(depth + 1, f"{stop} = pos + {n}")
        self.line(depth + 1, f"if {stop} > end: raise DecodeError({name + ' is cut short'!r})")
        self.line(depth + 1, f"{target} = {value}")
        self.line(depth + 1, f"pos = {stop}")

    def nested(self, depth: int, cls: type[Struct], target: str, nullable: bool, tagged: bool) -> None:
        """A struct. Null is -1, in a tagged field 0."""
        item = self.name("s")
        if nullable:
            present = self.name("n")
            unpack = self.constant("unpack", struct.Struct(">b").unpack_from)
            self.line(depth, f"{present}, = {unpack}(buf, pos)")
            self.line(depth, "pos += 1")
            self.line(depth, f"if {present} < {int(tagged)}: {target} = None")
            self.line(depth, "else:")
            depth += 1
        self.struct(depth, cls, item)
        self.line(depth, f"{target} = {item}")

    def array(self, depth: int, cls: type[Struct], declared: Field, target: str, nullable: bool) -> None:
        element = declared.element
        assert element is not None
        n = self.length(depth, self.flexible, "i")
        self.line(depth, f"if {n} < 0:")
        self.line(depth + 1, f"{target} = None" if nullable else f"raise null_error({declared.name!r})")
        self.line(depth, "else:")
        depth += 1
        self.spend(depth, n)
        if element in PRIMITIVES and element not in ("Uuid", "bool"):
            code = PRIMITIVES[element]
            self.line(depth, f"{target}, pos = read_fixed_array(buf, pos, {n}, {code!r}, {width(code)})")
            return
        items, item = self.name("items"), self.name("item")
        # Every element takes at least one byte: a larger count is a lie, refused before it costs anything.
        self.line(depth, f"if {n} > end - pos: raise DecodeError({declared.name + ' is longer than the message'!r})")
        self.line(depth, f"{items} = {target} = []")
        self.line(depth, f"for _ in range({n}):")
        if element == "Uuid":
            self.line(depth + 1, f"{items}.append(bytes(buf[pos:pos + 16]))")
            self.line(depth + 1, "pos += 16")
            self.line(depth + 1, "if pos > end: raise DecodeError('cut short')")
        elif element in ("str", "bytes"):
            size = self.length(depth + 1, self.flexible, "h" if element == "str" else "i")
            self.blob(depth + 1, element, size, item, False, declared.name)
            self.line(depth + 1, f"{items}.append({item})")
        else:
            self.struct(depth + 1, resolve(cls, element), item)
            self.line(depth + 1, f"{items}.append({item})")
