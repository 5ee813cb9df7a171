"""What the tools find in files: items, and what is asked of them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pybroker.storage.tools.decoders import RecordDecoder

Kind = Literal["note", "problem", "batch", "record", "entry"]


class Item(NamedTuple):
    """One thing found. Fields have Kafka's names; a note or problem has `text` and, where known, `position`."""

    kind: Kind
    fields: dict[str, Any]


class Options(NamedTuple):
    """`deep`: the records of each batch; `data`: with their keys and values, which `decoder` turns into texts.

    `only_problems`: what is in order is not told.
    """

    deep: bool = False
    data: bool = False
    decoder: RecordDecoder | None = None
    only_problems: bool = False


class OptionalNumber(NamedTuple):
    """A number or none, which Kafka prints as Java does."""

    value: int | None

    def __str__(self) -> str:
        return "OptionalLong.empty" if self.value is None else f"OptionalLong[{self.value}]"


def note(text: str) -> Item:
    return Item("note", {"text": text})


def problem(text: str, position: int | None = None) -> Item:
    return Item("problem", {"text": text} if position is None else {"position": position, "text": text})
