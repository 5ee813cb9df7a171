"""Scripts of the consumer protocol, recorded from Apache Kafka 4.3.1, decided without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordinator.consumer_side import Pure
from tests.support import consumer_scripts

SCRIPTS = sorted(consumer_scripts.FOLDER.glob("*.txt"))


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
