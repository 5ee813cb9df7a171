"""The rooms of the repository and what their modules import, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("config", "protocol", "storage", "replication", "controller", "coordinator", "broker")


class Import(NamedTuple):
    """One imported name, made absolute: what `from pybroker.storage import log` imports is pybroker.storage.log."""

    path: Path
    line: int
    module: str
    name: str | None

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def room(self) -> str | None:
        """The room it comes from; "" for the package itself, None outside pybroker."""
        if self.package != "pybroker":
            return None
        parts = [*self.module.split("."), *([self.name] if self.name else [])]
        return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""

    def __str__(self) -> str:
        name = f" ({self.name})" if self.name else ""
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.module}{name}"


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@cache
def imports(room: str) -> tuple[Import, ...]:
    """Every import of a room: at the top, inside functions, and for type checking only."""
    return tuple(each for path in modules(room) for each in _of_module(path))


def _of_module(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(path, node.lineno, _absolute(path, node), alias.name)
        elif isinstance(node, ast.Call) and (named := _import_module_call(node)):
            yield Import(path, node.lineno, named, None)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ("pybroker", *path.relative_to(ROOT).parent.parts)
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _import_module_call(node: ast.Call) -> str | None:
    """The start of the name in importlib.import_module("..."), where it is written out."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called != "import_module" or not node.args:
        return None
    given = node.args[0]
    if isinstance(given, ast.JoinedStr):
        given = given.values[0]
    return given.value.rstrip(".") if isinstance(given, ast.Constant) and isinstance(given.value, str) else None
