"""How a message is declared: a class whose fields say in which versions they exist.

    class TopicProduceData(Struct):
        name: str = field("0-12")
        topic_id: Uuid = field("13+")
        partition_data: list[PartitionProduceData] = field("0+")

    class ProduceRequest(Message, kind="request", api_key=0, versions="0-13", flexible="9+"):
        transactional_id: str | None = field("3+", nullable="3+", default=None)
        ...

Declaring costs next to nothing (start-up imports only what it uses): the class gets __slots__ and keyword-only
construction, whose code is made at the first instance; encoders and decoders are made in `codec` at the first use of
a (message, version). Shapes, names and defaults are those of Kafka's message schemas.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, dataclass_transform

_UNSET: Any = object()
_OPEN_END = 32767

Kind = Literal["request", "response", "header", "data", "struct"]


class VersionRange(NamedTuple):
    """Versions lowest..highest, both included; empty when highest < lowest."""

    lowest: int
    highest: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest <= version <= self.highest


NO_VERSIONS = VersionRange(0, -1)


def parse_versions(text: str) -> VersionRange:
    """Read "3", "0-2", "3+" or "none"."""
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), _OPEN_END)
    low, _, high = text.partition("-")
    return VersionRange(int(low), int(high or low))


class Field:
    """One field of a declaration; `type_text` is its annotation without `| None`."""

    __slots__ = ("default", "flexible", "name", "nullable", "tag", "tagged", "type_text", "versions")

    def __init__(
        self,
        versions: str,
        nullable: str,
        tag: int | None,
        tagged: str,
        default: object,
        flexible: str | None,
    ) -> None:
        self.name = ""
        self.type_text = ""
        self.versions = parse_versions(versions)
        self.nullable = parse_versions(nullable)
        self.tag = tag
        self.tagged = parse_versions(tagged)
        self.default = default
        self.flexible = None if flexible is None else parse_versions(flexible)

    def bind(self, name: str, annotation: str) -> None:
        self.name = name
        self.type_text = annotation.removesuffix(" | None")
        if self.default is _UNSET:
            self.default = _IMPLICIT_DEFAULTS.get(self.type_text, _UNSET)

    @property
    def element(self) -> str | None:
        """The element type of an array, None for anything else."""
        return self.type_text[5:-1] if self.type_text.startswith("list[") else None

    @property
    def is_struct(self) -> bool:
        """One struct, not an array of them."""
        return self.element is None and self.type_text not in _IMPLICIT_DEFAULTS and self.type_text != "Records"

    @property
    def makes_default(self) -> bool:
        """Whether each instance needs a default object of its own (an array or a struct)."""
        return self.default is _UNSET


_IMPLICIT_DEFAULTS: dict[str, object] = {
    "str": "", "bytes": b"", "bool": False, "float64": 0.0, "Uuid": bytes(16), "Records": None,
    "int8": 0, "int16": 0, "int32": 0, "int64": 0, "uint16": 0, "uint32": 0,
}  # fmt: skip


def field(
    versions: str,
    *,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str = "none",
    default: object = _UNSET,
    flexible: str | None = None,
) -> Any:
    """Declare a field: the versions that carry it, those that may carry null, its tag and the versions that tag it.

    Without `default` it is the schema language's own: 0, "", false, an empty array, a struct of defaults.
    `flexible` overrides the message's flexible versions for this one field (only the request header's client id).
    """
    return Field(versions, nullable, tag, tagged, default, flexible)


# Without field_specifiers every `= field(...)` counts as a default, which each field has.
@dataclass_transform(kw_only_default=True)
class _Declared(type):
    """Turns a class body of `field(...)` into slots and a list of fields."""

    FIELDS: tuple[Field, ...]

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: Any) -> _Declared:
        fields = [(key, value) for key, value in body.items() if isinstance(value, Field)]
        annotations = body.get("__annotations__", {})
        for key, declared in fields:
            declared.bind(key, annotations[key])
            del body[key]
        body["__slots__"] = tuple(key for key, _ in fields) if bases else ("unknown_tags",)
        body["FIELDS"] = tuple(declared for _, declared in fields)
        return super().__new__(mcs, name, bases, body)

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, body)
        if "versions" in options:
            cls.KIND = options["kind"]
            cls.API_KEY = options.get("api_key", -1)
            cls.VERSIONS = parse_versions(options["versions"])
            cls.FLEXIBLE = parse_versions(options.get("flexible", "none"))

    KIND: Kind
    API_KEY: int
    VERSIONS: VersionRange
    FLEXIBLE: VersionRange


class Struct(metaclass=_Declared):
    """A part of a message. Equal when every field is; tags that the declaration does not know are kept beside them."""

    FIELDS: ClassVar[tuple[Field, ...]]
    if TYPE_CHECKING:  # a slot at run time
        unknown_tags: list[tuple[int, bytes]] | None = None

    def __init__(self, **values: Any) -> None:
        _compile_init(type(self))
        self.__init__(**values)  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        _compile_eq(type(self))
        return self.__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in self.FIELDS)})"


class Message(Struct):
    """A whole request, response, header or record: a struct with an API key (or -1) and its versions."""

    KIND: ClassVar[Kind]
    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[VersionRange]
    FLEXIBLE: ClassVar[VersionRange]


def resolve(cls: type[Struct], type_name: str) -> type[Struct]:
    """The struct class that a declaration in `cls`'s module names."""
    found = getattr(sys.modules[cls.__module__], type_name)
    assert isinstance(found, type) and issubclass(found, Struct)
    return found


def default_factory(cls: type[Struct], declared: Field) -> Callable[[], Any]:
    """What makes the default of a field whose default is an object of its own."""
    return list if declared.element is not None else resolve(cls, declared.type_text)


def _compile_eq(cls: type[Struct]) -> None:
    """Give `cls` the __eq__ that compares its fields: encoders ask it of every tagged struct."""
    same = "".join(f" and self.{declared.name} == other.{declared.name}" for declared in cls.FIELDS)
    source = f"""def __eq__(self, other):
    if type(other) is not type(self): return NotImplemented
    return (self.unknown_tags or []) == (other.unknown_tags or []){same}
"""
    scope: dict[str, Any] = {}
    exec(source, scope)
    cls.__eq__ = scope["__eq__"]  # type: ignore[method-assign]


def _compile_init(cls: type[Struct]) -> None:
    """Give `cls` the __init__ that its fields describe; runs once, at the first instance."""
    scope: dict[str, Any] = {"_UNSET": _UNSET}
    parameters, lines = [], []
    for index, declared in enumerate(cls.FIELDS):
        name = declared.name
        if declared.makes_default:
            scope[f"make{index}"] = default_factory(cls, declared)
            parameters.append(f"{name}=_UNSET")
            lines.append(f"    self.{name} = make{index}() if {name} is _UNSET else {name}")
        else:
            scope[f"default{index}"] = declared.default
            parameters.append(f"{name}=default{index}")
            lines.append(f"    self.{name} = {name}")
    parameters.append("unknown_tags=None")
    lines.append("    self.unknown_tags = unknown_tags")
    source = "\n".join([f"def __init__(self, *, {', '.join(parameters)}):", *lines])
    exec(source, scope)
    cls.__init__ = scope["__init__"]  # type: ignore[method-assign]
