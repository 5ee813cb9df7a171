"""Scripts of the consumer protocol, recorded from Apache Kafka 4.3.1, decided without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.coordinator.consumer.group import ConsumerGroup
from pybroker.coordinator.consumer.state import GroupState
from pybroker.coordinator.group import Group
from tests.coordinator.consumer_side import Pure
from tests.support import consumer_scripts

SCRIPTS = sorted(consumer_scripts.FOLDER.glob("*.txt"))
# What is not written down, joins under way and since when a member has been silent, does not survive a fail-over.
LASTING = [path for path in SCRIPTS if "classic-" not in path.read_text() and path.stem != "sessions"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    _, steps = consumer_scripts.read(path)
    side = Pure()
    for step, answer in consumer_scripts.run(steps, side):
        wanted = [each for each in step.answer if not each.startswith("#")]
        assert [_nameless(side, each) for each in answer] == [_nameless(side, each) for each in wanted], step.line


def _nameless(side: Pure, line: str) -> str:
    """Ids that a broker gave out are different every time."""
    for name, member_id in side.ids.items():
        line = line.replace(member_id, name)
    return line


@pytest.mark.parametrize("path", LASTING, ids=lambda path: path.stem)
def test_script_with_a_fail_over_at_every_step(path: Path) -> None:
    """Replaying the log leads to the same state, so nobody notices but by sessions that begin anew."""
    _, steps = consumer_scripts.read(path)
    side = Pure()
    for step, answer in consumer_scripts.run(steps, side):
        assert answer == step.answer, step.line
        before = {group_id: snapshot(group) for group_id, group in side.harness.shard.groups.items()}
        side.harness.fail_over()
        assert {group_id: snapshot(group) for group_id, group in side.harness.shard.groups.items()} == before, step.line


def snapshot(group: Group) -> object:
    """All that is committed of a group."""
    if not isinstance(group, ConsumerGroup):
        return group.state_name
    return {name: getattr(group.state, name) for name in GroupState.__slots__}
