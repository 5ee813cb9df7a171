"""The `partition.metadata` file: which topic id the partition directory belongs to (KIP-516).

Two lines, `version: 0` and `topic_id: <22 characters of base64url>`, without a newline at the end. A directory that
has another id than the controller says holds records of a deleted topic of the same name and is not served.
"""

from __future__ import annotations

from pathlib import Path

from pybroker.protocol.uuids import uuid_from_text, uuid_to_text
from pybroker.storage.checkpoints import repair_hint, replace_file

FILE_NAME = "partition.metadata"
VERSION = "0"


class CorruptPartitionMetadata(ValueError):
    """The file cannot be parsed; the message names the file and the remedy."""


def read_topic_id(directory: Path) -> bytes | None:
    """The topic id in a partition directory, None without the file; CorruptPartitionMetadata, OSError.

    A file without content counts as missing: a power failure soon after the partition was made leaves that.
    """
    path = directory / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if not data.strip(b"\0"):
        return None
    text = data.decode("utf-8", "replace")
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        if fields["version"] != VERSION:
            raise ValueError(f"its version is {fields['version']!r}, not {VERSION}")
        return uuid_from_text(fields["topic_id"])
    except KeyError as missing:
        reason = f"it has no line '{missing.args[0]}: ...'"
    except ValueError as error:
        reason = str(error)
    raise CorruptPartitionMetadata(
        f"{path} cannot be read: {reason}. Remove the file: it is written again with the topic id of the controller. "
        f"{repair_hint(directory.parent)}"
    )


def write_topic_id(directory: Path, topic_id: bytes) -> None:
    """Write the file; not synced: recovery does without it, and the controller brings the id again."""
    text = f"version: {VERSION}\ntopic_id: {uuid_to_text(topic_id)}"
    replace_file(directory / FILE_NAME, text.encode(), sync=False)
