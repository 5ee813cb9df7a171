"""The `meta.properties` file of a log directory: which broker of which cluster it belongs to.

A Java properties file with `version=0`, `broker.id` and `cluster.id`, as Kafka with ZooKeeper writes it. version=1
(`node.id`) is a directory formatted for KRaft; its records may well be readable, but its metadata is not here, so it is
refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pybroker.storage.checkpoints import repair_hint, replace_file

FILE_NAME = "meta.properties"


class WrongDirectory(ValueError):
    """A log directory that this broker must not use; the message names the file, what is wrong and the remedy."""


class MetaProperties(NamedTuple):
    """What the file says; None where it does not."""

    broker_id: int | None
    cluster_id: str | None


def read_meta_properties(directory: Path) -> MetaProperties | None:
    """What a log directory says of itself, None without the file; WrongDirectory if it is no broker's of this kind."""
    path = directory / FILE_NAME
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    properties = parse_properties(text)
    version = properties.get("version", "0")
    if version == "1" or "node.id" in properties:
        raise WrongDirectory(
            f"{path} says version={version}: the directory was formatted for KRaft, whose metadata cannot be used "
            f"here. Set log.dirs to an empty directory, or, if the records in it may be lost, empty this one. "
            f"`pybroker log repair {directory}` offers to keep records and ids; topics then have to be imported "
            f"(`pybroker metadata import`)."
        )
    if version != "0":
        raise WrongDirectory(f"{path} says version={version}, not 0. Set log.dirs to another directory.")
    broker_id = properties.get("broker.id")
    if broker_id is not None and not broker_id.isdecimal():
        raise WrongDirectory(
            f"{path} says broker.id={broker_id}, which is no broker id. Correct it, or remove the file "
            f"to have it written again. {repair_hint(directory)}"
        )
    return MetaProperties(None if broker_id is None else int(broker_id), properties.get("cluster.id"))


def write_meta_properties(directory: Path, broker_id: int, cluster_id: str) -> None:
    """Write the file of a directory that has none, durably."""
    date = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime())
    text = f"#\n#{date}\nbroker.id={broker_id}\nversion=0\ncluster.id={cluster_id}\n"
    replace_file(directory / FILE_NAME, text.encode())


def check_meta_properties(found: Mapping[Path, MetaProperties | None], broker_id: int, cluster_id: str) -> list[Path]:
    """The directories without a file yet; WrongDirectory if one belongs to another broker or cluster."""
    for directory, properties in found.items():
        if properties is None:
            continue
        path = directory / FILE_NAME
        if properties.cluster_id not in (None, cluster_id):
            raise WrongDirectory(
                f"{path} says cluster.id={properties.cluster_id}, but the metadata is that of cluster {cluster_id}. "
                f"Set log.dirs to the directories of this cluster; only if the metadata was lost on purpose, "
                f"remove the file, or let `pybroker log repair {directory} --cluster-id {cluster_id}` correct it."
            )
        if properties.broker_id not in (None, broker_id):
            raise WrongDirectory(
                f"{path} says broker.id={properties.broker_id}, but this is broker {broker_id}. "
                f"Set broker.id={properties.broker_id}, or log.dirs to the directories of broker {broker_id}. "
                f"If it was renumbered on purpose, `pybroker log repair {directory} --broker-id {broker_id}` corrects "
                f"the file."
            )
    return [directory for directory, properties in found.items() if properties is None]


def cluster_id_of(found: Iterable[MetaProperties | None]) -> str | None:
    """The cluster id that the directories agree on, None when none has one."""
    return next((properties.cluster_id for properties in found if properties and properties.cluster_id), None)


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of a Java properties text as brokers write it: one a line, no escapes but a leading backslash."""
    properties = {}
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            key, _, value = stripped.partition("=")
            properties[key.strip()] = value.strip().replace("\\", "")
    return properties
