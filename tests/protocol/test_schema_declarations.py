"""Every declaration says what Kafka's message schemas say, version by version, and carries random values unchanged.

Where Apache Kafka 3.9.2 and 4.3.1 both have a version, 4.3.1's schema counts; DIFFERENT names the messages whose
schemas differ there.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from pybroker.protocol import codec
from pybroker.protocol.schema import Field, Struct, default_factory, resolve
from tests.support import schema as recorded
from tests.support.declared import declared

# Exchanged by KRaft controllers only, or kept on their disks.
_KRAFT_APIS = (
    "AssignReplicasToDirs BeginQuorumEpoch BrokerHeartbeat BrokerRegistration ControllerRegistration EndQuorumEpoch"
    " FetchSnapshot UpdateRaftVoter Vote"
)
NOT_DECLARED = {
    *(api + kind for api in _KRAFT_APIS.split() for kind in ("Request", "Response")),
    *("KRaftVersionRecord", "LeaderChangeMessage", "QuorumStateData", "VotersRecord"),
    *("SnapshotFooterRecord", "SnapshotHeaderRecord"),
    # 4.3.1 calls it ListConfigResources
    *("ListClientMetricsResourcesRequest", "ListClientMetricsResourcesResponse"),
}
# Versions in which the two releases' schemas of a message differ; 4.3.1's counts.
DIFFERENT = {
    "ConsumerGroupCurrentMemberAssignmentValue": [0],  # assignment epochs, tagged
    "ConsumerGroupMetadataValue": [0],  # metadata hash, tagged
    "ConsumerGroupTargetAssignmentMetadataValue": [0],  # assignment timestamp, tagged
    "OffsetCommitValue": [4],  # topic id, tagged
    "ReadShareGroupStateSummaryResponse": [0],  # leader epoch
    "RemoteLogSegmentMetadataRecord": [0],  # whether the transaction index is empty, tagged
    "RemoteLogSegmentMetadataSnapshotRecord": [0],  # the same
    "ShareGroupMetadataValue": [0],  # metadata hash
    "TransactionLogValue": [1],  # previous and next producer, client's transaction version, tagged
}

TYPES = {"string": "str", "records": "Records", "uuid": "Uuid"}
Shape = list[tuple[Any, ...]]


def schema_of(name: str, version: int, releases: tuple[str, ...] = ("4.3.1", "3.9.2")) -> recorded.Message | None:
    for release in releases:
        message = recorded.messages(release).get(name)
        if message is not None and version in message.versions:
            return message
    return None


def snake(name: str) -> str:
    """ThrottleTimeMs -> throttle_time_ms, V3AndBelowTopics -> v3_and_below_topics."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def type_name(kind: str) -> str:
    inner = kind.removeprefix("[]")
    name = TYPES.get(inner, inner)
    return f"list[{name}]" if kind.startswith("[]") else name


# Kinds of record that 4.3.1 tells apart and we do not.
KINDS = {"coordinator-key": "data", "coordinator-value": "data", "metadata": "data"}


def by_tag(shape: Shape) -> Shape:
    """Fields in the order they are sent: as declared, tagged ones behind by their tag."""
    return sorted(shape, key=lambda field: -1 if field[3] is None else field[3])


def recorded_shape(fields: list[recorded.Field], version: int) -> Shape:
    """What a schema says of one version: (name, type, nullable, tag, default, flexible, inner fields) per field."""
    return by_tag([
        (
            snake(each.name),
            type_name(each.type),
            version in each.nullable,
            each.tag if version in each.tagged else None,
            each.default,
            None if each.flexible is None else version in each.flexible,
            recorded_shape(each.fields, version),
        )
        for each in fields
        if version in each.versions
    ])  # fmt: skip


def struct_of(owner: type[Struct], field: Field) -> type[Struct] | None:
    """The struct class of a field or of its elements, None for primitives."""
    name = field.element or field.type_text
    return resolve(owner, name) if name[0].isupper() and name not in ("Records", "Uuid") else None


def declared_shape(cls: type[Struct], version: int) -> Shape:
    """The same of a declaration."""
    shape = []
    for each in cls.FIELDS:
        if version in each.versions:
            inner = struct_of(cls, each)
            default = each.default
            if each.makes_default:
                default = [] if default_factory(cls, each) is list else {}
            tag = each.tag if version in each.tagged else None
            flexible = None if each.flexible is None else version in each.flexible
            fields = [] if inner is None else declared_shape(inner, version)
            # Where request and response have structs of one name, ours is ResponseX in the response.
            kind = each.type_text.replace("list[Response", "list[").removeprefix("Response")
            shape.append((each.name, kind, version in each.nullable, tag, default, flexible, fields))
    return by_tag(shape)


def versions_of(name: str) -> list[int]:
    """Every version that either release has. In 4.3.1 the number in front of a coordinator's key is no longer its
    version (it says what kind of record it is, and the version is 0), so only that release counts for keys."""
    newer = recorded.messages("4.3.1").get(name)
    releases = ("4.3.1",) if newer and newer.kind == "coordinator-key" else ("4.3.1", "3.9.2")
    return [version for version in range(64) if schema_of(name, version, releases)]


NAMES = sorted({name for release in ("3.9.2", "4.3.1") for name in recorded.messages(release)} - NOT_DECLARED)


def test_every_message_is_declared_and_no_other() -> None:
    assert sorted(declared()) == NAMES


def test_where_the_releases_differ() -> None:
    found: dict[str, list[int]] = {}
    for name in NAMES:
        for version in versions_of(name):
            newer, older = schema_of(name, version, ("4.3.1",)), schema_of(name, version, ("3.9.2",))
            if newer and older and recorded_shape(newer.fields, version) != recorded_shape(older.fields, version):
                found.setdefault(name, []).append(version)
    assert found == DIFFERENT


@pytest.mark.parametrize("name", NAMES)
def test_declaration(name: str) -> None:
    cls, versions = declared()[name], versions_of(name)
    assert (cls.VERSIONS.lowest, cls.VERSIONS.highest) == (versions[0], versions[-1])
    for version in versions:
        schema = schema_of(name, version)
        assert schema is not None
        kind = KINDS.get(schema.kind, schema.kind)
        assert kind == cls.KIND
        newest = schema_of(name, versions[-1])  # 3.9.2's records have no number
        assert (-1 if newest is None or newest.api_key is None else newest.api_key) == cls.API_KEY
        assert (version in cls.FLEXIBLE) == (version in schema.flexible)
        assert declared_shape(cls, version) == recorded_shape(schema.fields, version), f"version {version}"


# ------------------------------------------------------------------ random instances
NUMBER_BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
TEXTS = ("a", "topic-1", "é€", "x" * 130, "")


def random_value(field: recorded.Field, kind: str, version: int, rng: random.Random, element: bool = False) -> Any:
    if not element and version in field.nullable and rng.random() < 0.25:
        return None
    if kind.startswith("[]"):
        return [random_value(field, kind[2:], version, rng, True) for _ in range(rng.randrange(4))]
    if kind in NUMBER_BITS:
        bits = NUMBER_BITS[kind]
        low = 0 if kind.startswith("u") else -(1 << bits - 1)
        return rng.choice((low, low + (1 << bits) - 1, rng.randrange(low, low + (1 << bits))))
    if kind == "float64":
        return rng.uniform(-1e9, 1e9)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "string":
        return rng.choice(TEXTS)
    if kind == "uuid":
        return rng.randbytes(16)
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 1, 127, 200)))
    return random_struct(field.fields, version, rng)


def random_struct(fields: list[recorded.Field], version: int, rng: random.Random) -> dict[str, Any]:
    return {each.name: random_value(each, each.type, version, rng) for each in fields if version in each.versions}


def assert_same(got: Any, expected: Any, fields: list[recorded.Field]) -> None:
    """A decoded struct holds what the dict says."""
    for each in fields:
        if each.name in expected:
            assert_same_value(getattr(got, snake(each.name)), expected[each.name], each)


def assert_same_value(got: Any, expected: Any, field: recorded.Field) -> None:
    if isinstance(expected, dict):
        assert_same(got, expected, field.fields)
    elif isinstance(expected, list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same_value(one, other, field)
    else:
        assert (bytes(got) if isinstance(got, memoryview) else got) == expected, field.name


def without_defaults(values: Any, fields: list[recorded.Field], version: int) -> Any:
    """Drops tagged values that are the default: they are not sent, so our second codec must not send them either."""
    kept = {}
    for each in fields:
        if each.name in values:
            value = values[each.name]
            if isinstance(value, dict):
                value = without_defaults(value, each.fields, version)
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                value = [without_defaults(one, each.fields, version) for one in value]
            if version in each.tagged and (value == each.default or value == all_defaults(each, version)):
                continue
            kept[each.name] = value
    return kept


def all_defaults(field: recorded.Field, version: int) -> Any:
    if field.element or not field.fields:
        return field.default
    return {each.name: each.default for each in field.fields if version in each.versions}


@pytest.mark.parametrize("name", NAMES)
def test_random_instances(name: str) -> None:
    cls = declared()[name]
    rng = random.Random(name)
    for version in versions_of(name):
        schema = schema_of(name, version)
        assert schema is not None
        for _ in range(4):
            values = without_defaults(random_struct(schema.fields, version, rng), schema.fields, version)
            data = recorded.encode_fields(schema.fields, values, version, version in schema.flexible)
            message, end = codec.decode(cls, version, data)
            assert end == len(data)
            assert_same(message, values, schema.fields)
            assert codec.encode_bytes(message, version) == data, f"version {version}: {values}"
            assert codec.decode(cls, version, data)[0] == message


@pytest.mark.parametrize("name", NAMES)
def test_defaults_and_cuts(name: str) -> None:
    """An instance of defaults survives the wire; every cut of it is malformed, not a crash."""
    cls = declared()[name]
    for version in versions_of(name):
        try:
            data = codec.encode_bytes(cls(), version)
        except TypeError:
            continue  # a field whose default is null in versions that must not carry null
        assert codec.encode_bytes(codec.decode(cls, version, data)[0], version) == data
        for size in range(len(data)):
            with pytest.raises(codec.DecodeError):
                codec.decode(cls, version, data[:size])
