"""Imports go down: broker → replication, controller, coordinator → storage → protocol → config."""

from __future__ import annotations

import sys

import pytest

from tests.architecture.rooms import ROOMS, imports, modules

# Room → the rooms it knows. What one of the three in the middle needs of another is handed in by broker.
KNOWS = {
    "config": set[str](),
    "protocol": {"config"},
    "storage": {"protocol", "config"},
    "replication": {"storage", "protocol", "config"},
    "controller": {"protocol", "config"},
    "coordinator": {"protocol", "config"},
    "broker": {"config", "protocol", "storage", "replication", "controller", "coordinator"},
}
# Room → the packages it may need beside the standard library.
NEEDS = {
    "config": {"yaml"},
    "protocol": {"crc32c", "lz4", "zstandard", "snappy"},
    "storage": {"crc32c"},
    "replication": set[str](),
    "controller": {"kazoo"},
    "coordinator": {"re2"},
    "broker": {"uvloop", "prometheus_client", "aiohttp", "click", "rich"},
}


def test_every_room_is_there() -> None:
    assert set(KNOWS) == set(NEEDS) == set(ROOMS)
    assert not [room for room in ROOMS if not modules(room)]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_it_knows(room: str) -> None:
    allowed = KNOWS[room] | {room, ""}
    assert not [str(each) for each in imports(room) if each.room is not None and each.room not in allowed]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_packages_it_needs(room: str) -> None:
    allowed = NEEDS[room] | {"pybroker"} | sys.stdlib_module_names
    assert not [str(each) for each in imports(room) if each.package not in allowed]


@pytest.mark.parametrize("room", ROOMS)
def test_imports_are_absolute(room: str) -> None:
    """`from pybroker.storage.log import Log`: one name for a module wherever it is read."""
    relative = [each for each in imports(room) if each.package in ROOMS or not each.package]
    assert not [str(each) for each in relative]


@pytest.mark.parametrize("room", ROOMS)
def test_the_product_does_not_import_its_tests(room: str) -> None:
    assert not [str(each) for each in imports(room) if each.package in ("tests", "bench")]


def test_annotations_are_never_evaluated() -> None:
    """Every module that has annotations starts with the future import: a start does not pay for evaluating them."""
    late = []
    for room in ROOMS:
        for path in modules(room):
            text = path.read_text(encoding="utf-8")
            if ("def " in text or "class " in text) and "from __future__ import annotations" not in text:
                late.append(str(path))
    assert not late
