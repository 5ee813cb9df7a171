"""The leader's view of its replicas: high watermark, lag, joining the ISR. Pure: offsets and times are given."""

from __future__ import annotations

from pybroker.replication.leader import OUTSIDE_MS, LeaderState

LAG = 30_000


def leader(isr: tuple[int, ...] = (1, 2, 3), start: int = 0, now: int = 0) -> LeaderState:
    return LeaderState(1, 5, start, (1, 2, 3), isr, now)


def fetch(state: LeaderState, replica: int, offset: int, end: int, now: int, log_start: int = 0) -> None:
    state.followers[replica].record_fetch(offset, log_start, end, now)


def test_alone_the_watermark_is_the_log_end() -> None:
    state = LeaderState(1, 0, 0, (1,), (1,), 0)
    assert state.high_watermark(17, 0) == 17


def test_watermark_is_the_smallest_end_in_the_isr() -> None:
    state = leader()
    assert state.high_watermark(10, 0) == 0  # nobody has fetched yet
    fetch(state, 2, 10, 10, 1)
    assert state.high_watermark(10, 0) == 0
    fetch(state, 3, 7, 10, 1)
    assert state.high_watermark(10, 0) == 7


def test_a_replica_outside_the_isr_does_not_hold_the_watermark_back() -> None:
    state = leader(isr=(1, 2))
    fetch(state, 2, 10, 10, 1)
    fetch(state, 3, 2, 10, 1)
    assert state.high_watermark(10, 0) == 10


def test_the_watermark_never_goes_back() -> None:
    state = leader()
    fetch(state, 2, 3, 10, 1)
    fetch(state, 3, 3, 10, 1)
    assert state.high_watermark(10, 8) == 8


def test_an_expansion_in_flight_already_holds_the_watermark() -> None:
    state = leader(isr=(1, 2))
    fetch(state, 2, 10, 10, 1)
    fetch(state, 3, 6, 10, 1)
    state.propose_isr((1, 2, 3))
    assert state.high_watermark(10, 5) == 6
    state.commit_isr((1, 2))  # the controller refused
    assert state.high_watermark(10, 5) == 10


def test_a_shrink_in_flight_still_holds_the_watermark() -> None:
    state = leader()
    fetch(state, 2, 10, 10, 1)
    fetch(state, 3, 4, 10, 1)
    state.propose_isr((1, 2))
    assert state.high_watermark(10, 0) == 4
    state.commit_isr((1, 2))
    assert state.high_watermark(10, 4) == 10


def test_a_follower_that_reached_the_end_of_its_previous_fetch_was_caught_up_then() -> None:
    state = leader()
    fetch(state, 2, 10, 20, now=1000)  # behind
    fetch(state, 2, 20, 35, now=2000)  # has what was the end at 1000, while the leader grew on
    assert state.followers[2].last_caught_up_ms == 1000
    fetch(state, 2, 35, 35, now=3000)
    assert state.followers[2].last_caught_up_ms == 3000


def test_lagging_followers_leave_but_those_at_the_end_stay_however_long_ago() -> None:
    state = leader()
    fetch(state, 2, 10, 10, now=0)
    fetch(state, 3, 5, 10, now=0)
    assert state.out_of_sync(10, LAG, LAG) == frozenset()  # not yet: exactly the limit
    assert state.out_of_sync(10, LAG + 1, LAG) == {3}
    assert state.out_of_sync(11, LAG + 1, LAG) == {2, 3}  # the leader has grown and 2 did not follow


def test_nothing_is_shrunk_while_a_change_is_in_flight() -> None:
    state = leader()
    state.propose_isr((1, 2))
    assert state.out_of_sync(10, 10 * LAG, LAG) == frozenset()


def test_joining_needs_the_watermark_and_the_start_of_the_epoch() -> None:
    state = leader(isr=(1, 2), start=8)
    fetch(state, 3, 7, 10, 1)
    assert not state.may_join_isr(3, high_watermark=6, now_ms=0)  # has the watermark, but not the epoch's start
    fetch(state, 3, 8, 10, 1)
    assert state.may_join_isr(3, high_watermark=6, now_ms=0)
    assert not state.may_join_isr(3, high_watermark=9, now_ms=0)
    assert not state.may_join_isr(2, high_watermark=0, now_ms=0)  # is in it
    state.propose_isr((1, 2, 3))
    assert not state.may_join_isr(3, high_watermark=6, now_ms=0)  # on its way


def test_a_new_assignment_keeps_the_progress_of_those_who_stay() -> None:
    state = leader()
    fetch(state, 2, 9, 10, 1)
    state.update_replicas((1, 2, 4), (1, 2), now_ms=5)
    assert state.followers.keys() == {2, 4}
    assert state.followers[2].log_end_offset == 9
    assert state.high_watermark(10, 0) == 9


def test_low_watermark_is_the_smallest_start_of_all_replicas() -> None:
    state = leader()
    fetch(state, 2, 10, 10, 1, log_start=4)
    fetch(state, 3, 10, 10, 1, log_start=6)
    assert state.low_watermark(5) == 4


def test_one_that_the_controller_does_not_want_neither_joins_nor_is_waited_for() -> None:
    """A broker that is leaving goes on fetching until it is told to stop."""
    state = leader(isr=(1, 2))
    fetch(state, 2, 10, 10, now=0)
    fetch(state, 3, 10, 10, now=0)
    state.judge_outsider(3, 0, LAG)
    assert state.high_watermark(11, 10) == 10  # 3 is about to join, and is waited for
    fetch(state, 2, 11, 11, now=1)
    assert state.high_watermark(11, 10) == 10
    state.keep_outside([3], now_ms=1)
    assert state.high_watermark(11, 10) == 11
    fetch(state, 3, 11, 11, now=2)
    state.judge_outsider(3, 2, LAG)
    assert state.high_watermark(12, 11) == 11 and not state.joining
    assert not state.may_join_isr(3, high_watermark=11, now_ms=OUTSIDE_MS)
    assert state.may_join_isr(3, high_watermark=11, now_ms=OUTSIDE_MS + 1)
