"""Mutated recorded frames: no crash, no traceback, bounded memory, and a witness goes on producing and consuming.

About 45 seconds, or 200,000 frames with --long; `python -m tests.fuzz` runs for as long as one likes.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.fuzz.mutation import Mutator, corpus, mend_checksums
from tests.fuzz.run import OVERRIDES, Fuzz, new_seed
from tests.support.broker import BrokerProcess
from tests.support.records import batch

SECONDS, LONG_FRAMES = 45, 200_000


@pytest.mark.timeout(3600)
def test_mutated_frames(tmp_path: Path, long_run: bool) -> None:
    seed = new_seed()
    print(f"seed {seed}")
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as broker:
        fuzz = Fuzz(broker, seed)
        report = fuzz.run(frames=LONG_FRAMES) if long_run else fuzz.run(frames=LONG_FRAMES, seconds=SECONDS)
        print(report)
        assert report.answered > 0
        broker.restart()  # what the frames left behind is a directory that starts
        assert fuzz.witness.offset == _end_offset(broker)


def _end_offset(broker: BrokerProcess) -> int:
    from tests.fuzz.run import WITNESS

    with broker.client() as client:
        return client.end_offset(WITNESS)


def test_frames_depend_on_the_seed_only() -> None:
    mutator = Mutator()
    first, again, other = (
        [mutator.frame(random) for _ in range(200)] for random in (Random("1:2"), Random("1:2"), Random("1:3"))
    )
    assert first == again != other
    assert len(corpus()) > 1000


def test_a_mended_batch_is_whole() -> None:
    whole = batch([b"value"])
    frame = bytearray(30) + whole
    frame[-1] ^= 1
    damaged = bytes(frame)
    frame[30 + 17] ^= 0xFF
    mend_checksums(frame)
    assert bytes(frame) != damaged
    assert len(frame) == len(damaged)
