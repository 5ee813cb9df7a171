from __future__ import annotations

import asyncio
import io
import logging
import os
import time

from pybroker.broker.logging_setup import LoopMonitor, QueuedHandler, setup_logging


def logged(handler: QueuedHandler, name: str = "kind") -> logging.Logger:
    logger = logging.Logger(name)
    logger.addHandler(handler)
    return logger


def test_lines_reach_the_stream_in_order() -> None:
    out = io.StringIO()
    handler = QueuedHandler(out)
    logger = logged(handler, "net")
    logger.warning("one %d", 1)
    logger.error("two")
    handler.close()
    lines = out.getvalue().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["WARNING [net] one 1", "ERROR [net] two"]


def test_each_kind_has_its_own_limit_and_what_was_left_out_is_told() -> None:
    out = io.StringIO()
    handler = QueuedHandler(out, lines_a_period=3, period_s=0.05)
    logger = logged(handler)
    for n in range(10):
        logger.warning("flood %d", n)
    logger.warning("another kind")
    deadline = time.monotonic() + 5
    while "more such lines" not in out.getvalue() and time.monotonic() < deadline:
        time.sleep(0.06)
        logger.warning("flood %d", 99)
    handler.close()
    text = out.getvalue()
    assert "flood 2" in text and "flood 3" not in text and "another kind" in text
    assert "flood 99 (7 more such lines were left out)" in text


def test_a_reader_that_stopped_does_not_hold_the_caller() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        handler = QueuedHandler(stream, queue_lines=50, lines_a_period=10**9)
        logger = logged(handler)
        started = time.monotonic()
        for n in range(5000):
            logger.warning("a line of some length, so that the pipe fills up soon: %d %s", n, "x" * 200)
        assert time.monotonic() - started < 5 and handler.dropped > 0
        os.close(reading)  # the thread's write fails now, and it goes on
        handler.close()


def test_setup_replaces_the_root_handlers() -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    out = io.StringIO()
    handler = setup_logging(logging.INFO, out)
    try:
        logging.getLogger("pybroker.broker.x").info("hello")
        logging.getLogger("pybroker.broker.x").debug("hidden")
    finally:
        handler.close()
        root.handlers[:] = before
        root.setLevel(level)
    assert "INFO [broker.x] hello" in out.getvalue() and "hidden" not in out.getvalue()


async def test_the_monitor_notices_a_held_loop(caplog: object) -> None:
    monitor = LoopMonitor(asyncio.get_running_loop())
    monitor.start()
    await asyncio.sleep(0.01)
    time.sleep(0.15)
    deadline = time.monotonic() + 5
    while not monitor.worst_ms and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    monitor.stop()
    assert monitor.worst_ms >= 50 and "held up" in caplog.text  # type: ignore[attr-defined]
