"""Writes the source of an encoder (see codec)."""

from __future__ import annotations

import struct
from typing import Any

from pybroker.protocol.codec_runtime import PRIMITIVES, put_tags, put_uvarint
from pybroker.protocol.schema import Field, Struct, default_factory, resolve


def encoder_source(cls: type[Struct], version: int) -> tuple[str, dict[str, Any]]:
    """Source of `run(m)` and the names it needs."""
    writer = _Writer(version, cls.FLEXIBLE.__contains__(version) if hasattr(cls, "FLEXIBLE") else False)
    writer.line(1, "out = bytearray()")
    writer.line(1, "parts = [out]")
    writer.struct(1, cls, "m", "out")
    if writer.splits:
        writer.line(1, "if not out: parts.pop()")
    writer.line(1, "return parts")
    return "\n".join(["def run(m):", *writer.lines]), writer.scope


class _Writer:
    """Collects lines; `out` is the bytearray being filled, replaced by a fresh one behind every Records value."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.count = 0
        self.splits = False  # the message has Records, behind which a new part begins
        self.scope: dict[str, Any] = {"put_uvarint": put_uvarint, "put_tags": put_tags, "pack": struct.pack}

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

    def struct(self, depth: int, cls: type[Struct], source: str, out: str) -> None:
        """Write the struct in variable `source`."""
        run: list[Field] = []
        tagged: list[Field] = []
        for declared in cls.FIELDS:
            if self.version in declared.tagged:
                tagged.append(declared)
            elif self.version not in declared.versions:
                continue
            elif declared.type_text in PRIMITIVES:
                run.append(declared)
            else:
                self.fixed(depth, run, source, out)
                value = self.name()
                self.line(depth, f"{value} = {source}.{declared.name}")
                self.variable(depth, cls, declared, value, out)
        self.fixed(depth, run, source, out)
        if self.flexible:
            self.tags(depth, cls, tagged, source, out)

    def fixed(self, depth: int, run: list[Field], source: str, out: str) -> None:
        """Neighbouring fixed-width fields: one struct call."""
        if not run:
            return
        packer = self.constant("pack", struct.Struct(">" + "".join(PRIMITIVES[f.type_text] for f in run)).pack)
        self.line(depth, f"{out} += {packer}({', '.join(f'{source}.{f.name}' for f in run)})")
        run.clear()

    def tags(self, depth: int, cls: type[Struct], tagged: list[Field], source: str, out: str) -> None:
        if not tagged:
            self.line(depth, f"if {source}.unknown_tags: put_tags({out}, {source}.unknown_tags)")
            self.line(depth, f"else: {out}.append(0)")
            return
        tags = self.name("tags")
        self.line(depth, f"{tags} = list({source}.unknown_tags or ())")
        for declared in tagged:
            value, blob = self.name(), self.name("blob")
            if declared.makes_default:
                default = self.constant("default", default_factory(cls, declared)())
            else:
                default = self.constant("default", declared.default)
            self.line(depth, f"{value} = {source}.{declared.name}")
            self.line(depth, f"if {value} != {default}:")
            self.line(depth + 1, f"{blob} = bytearray()")
            if declared.type_text in PRIMITIVES:
                self.line(depth + 1, f"{blob} += pack({'>' + PRIMITIVES[declared.type_text]!r}, {value})")
            elif declared.is_struct and self.version in declared.nullable:
                self.tagged_struct(depth + 1, cls, declared, value, blob)
            else:
                self.variable(depth + 1, cls, declared, value, blob)
            self.line(depth + 1, f"{tags}.append(({declared.tag}, {blob}))")
        self.line(depth, f"if {tags}: put_tags({out}, {tags})")
        self.line(depth, f"else: {out}.append(0)")

    def tagged_struct(self, depth: int, cls: type[Struct], declared: Field, value: str, out: str) -> None:
        """A tagged struct that may be null says so with 0, not with -1 as elsewhere."""
        self.line(depth, f"if {value} is None: {out} += b'\\0'")
        self.line(depth, "else:")
        self.line(depth + 1, f"{out} += b'\\x01'")
        self.struct(depth + 1, resolve(cls, declared.type_text), value, out)

    # -- values ------------------------------------------------------------------------------------------------

    def length(self, depth: int, flexible: bool, code: str, value: str, out: str) -> None:
        if flexible:
            n = self.name("n")
            self.line(depth, f"{n} = {value} + 1")
            self.line(depth, f"if {n} < 128: {out}.append({n})")
            self.line(depth, f"else: put_uvarint({out}, {n})")
        else:
            packer = self.constant("pack", struct.Struct(">" + code).pack)
            self.line(depth, f"{out} += {packer}({value})")

    def null(self, flexible: bool, code: str, out: str) -> str:
        null = b"\0" if flexible else struct.pack(">" + code, -1)
        return f"{out} += {null!r}"

    def variable(self, depth: int, cls: type[Struct], declared: Field, value: str, out: str) -> None:
        """A string, bytes, records, array or struct in variable `value`."""
        nullable = self.version in declared.nullable
        kind = declared.type_text
        if declared.is_struct:
            self.nested(depth, resolve(cls, kind), value, nullable, out)
            return
        flexible = self.flexible if declared.flexible is None else self.version in declared.flexible
        code = "h" if kind == "str" else "i"
        if nullable or kind == "Records":
            self.line(depth, f"if {value} is None: {self.null(flexible, code, out)}")
            self.line(depth, "else:")
            depth += 1
        if declared.element is not None:
            self.length(depth, flexible, code, f"len({value})", out)
            self.elements(depth, cls, declared.element, value, out)
        else:
            self.blob(depth, kind, flexible, code, value, out)

    def blob(self, depth: int, kind: str, flexible: bool, code: str, value: str, out: str) -> None:
        if kind == "str":
            raw = self.name("raw")
            self.line(depth, f"{raw} = {value}.encode()")
            value = raw
        self.length(depth, flexible, code, f"len({value})", out)
        if kind == "Records":
            self.splits = True
            self.line(depth, f"parts.append({value})")
            self.line(depth, f"{out} = bytearray()")
            self.line(depth, f"parts.append({out})")
        else:
            self.line(depth, f"{out} += {value}")

    def nested(self, depth: int, cls: type[Struct], value: str, nullable: bool, out: str) -> None:
        if nullable:
            self.line(depth, f"if {value} is None: {out} += b'\\xff'")
            self.line(depth, "else:")
            depth += 1
            self.line(depth, f"{out} += b'\\x01'")
        self.struct(depth, cls, value, out)

    def elements(self, depth: int, cls: type[Struct], element: str, value: str, out: str) -> None:
        if element in PRIMITIVES:
            code = PRIMITIVES[element]
            if element == "Uuid":
                self.line(depth, f"{out} += b''.join({value})")
            else:
                self.line(depth, f"{out} += pack(f'>{{len({value})}}{code}', *{value})")
            return
        item = self.name("item")
        self.line(depth, f"for {item} in {value}:")
        if element in ("str", "bytes"):
            self.blob(depth + 1, element, self.flexible, "h" if element == "str" else "i", item, out)
        else:
            self.struct(depth + 1, resolve(cls, element), item, out)
