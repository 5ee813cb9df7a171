"""What starts when, and in which order answers leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker.broker.context import CloseConnection, EncodedResponse
from pybroker.broker.network.request_channel import WAITING_PRODUCES
from pybroker.protocol import codec
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.fetch import FetchResponse
from pybroker.protocol.messages.metadata import MetadataResponse
from pybroker.protocol.messages.produce import ProduceResponse
from tests.broker.network.harness import (
    Harness,
    api_versions_frame,
    fetch_frame,
    has,
    metadata_frame,
    produce_frame,
    until,
)


class Parked:
    """A handler whose requests wait until the test lets them go."""

    def __init__(self, response: type) -> None:
        self.response = response
        self.futures: list[asyncio.Future[Any]] = []

    def __call__(self, context: Any, request: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        return future

    def release(self, index: int) -> None:
        self.futures[index].set_result(self.response())


async def test_many_pipelined_requests_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        client.send(b"".join(metadata_frame(n) for n in range(1000)))
        assert [await client.correlation_id() for _ in range(1000)] == list(range(1000))


async def test_correlation_ids_may_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        client.send(metadata_frame(5) + metadata_frame(5))
        assert [await client.correlation_id() for _ in range(2)] == [5, 5]


async def test_nothing_starts_behind_a_waiting_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        parked = harness.handlers["fetch"] = Parked(FetchResponse)
        client, other = await harness.connect(), await harness.connect()
        client.send(fetch_frame(1) + api_versions_frame(2) + produce_frame(3) + metadata_frame(4))
        await until(lambda: len(parked.futures) == 1)
        client.send(metadata_frame(5))
        assert await other.call(metadata_frame(99))  # everyone else goes on
        assert [context[2] for context in harness.contexts] == [1, 99]
        parked.release(0)
        assert [await client.correlation_id() for _ in range(5)] == [1, 2, 3, 4, 5]


async def test_produces_start_behind_waiting_produces_and_answers_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Harness(monkeypatch) as harness:
        parked = Parked(ProduceResponse)
        at_once = harness.handlers["produce"]
        harness.handlers["produce"] = lambda context, request: (parked if request.acks == -1 else at_once)(
            context, request
        )
        client = await harness.connect()
        client.send(b"".join(produce_frame(n, acks=-1) for n in (1, 2, 3)))
        client.send(produce_frame(4, acks=1) + produce_frame(5, acks=0) + metadata_frame(6) + produce_frame(7))
        await until(lambda: len(harness.contexts) == 5)
        await asyncio.sleep(0.01)
        assert [context[2] for context in harness.contexts] == [1, 2, 3, 4, 5]
        parked.release(1)
        parked.release(2)
        await asyncio.sleep(0.01)
        assert len(harness.contexts) == 5 and not client.reader._buffer  # type: ignore[attr-defined]
        parked.release(0)
        assert [await client.correlation_id() for _ in range(6)] == [1, 2, 3, 4, 6, 7]


async def test_only_so_many_produces_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        parked = harness.handlers["produce"] = Parked(ProduceResponse)
        client = await harness.connect()
        client.send(b"".join(produce_frame(n, acks=-1) for n in range(WAITING_PRODUCES + 10)))
        await until(lambda: len(parked.futures) == WAITING_PRODUCES)
        await asyncio.sleep(0.02)
        assert len(parked.futures) == WAITING_PRODUCES
        for index in range(WAITING_PRODUCES):
            parked.release(index)
        await until(lambda: len(parked.futures) == WAITING_PRODUCES + 10)
        for index in range(10):
            parked.release(WAITING_PRODUCES + index)
        answers = [await client.correlation_id() for _ in range(WAITING_PRODUCES + 10)]
        assert answers == list(range(WAITING_PRODUCES + 10))


async def test_coroutine_handlers_and_encoded_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(context: Any, request: Any) -> MetadataResponse:
        await asyncio.sleep(0.01)
        return MetadataResponse()

    async with Harness(monkeypatch) as harness:
        client = await harness.connect()
        plain = await client.call(metadata_frame(1, 12))
        harness.handlers["metadata"] = slow
        assert await client.call(metadata_frame(1, 12)) == plain
        harness.handlers["metadata"] = lambda context, request: EncodedResponse(
            codec.encode(MetadataResponse(), context.api_version)
        )
        assert await client.call(metadata_frame(1, 12)) == plain


async def test_queued_max_requests_holds_back_work_and_not_long_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch, queued_max_requests=2) as harness:
        work = harness.handlers["metadata"] = Parked(MetadataResponse)
        polls = harness.handlers["fetch"] = Parked(FetchResponse)
        pollers = [await harness.connect() for _ in range(3)]
        for poller in pollers:
            poller.send(fetch_frame(1))
        await until(lambda: len(polls.futures) == 3)
        clients = [await harness.connect() for _ in range(4)]
        for client in clients:
            client.send(metadata_frame(1))
        await until(lambda: len(work.futures) == 2)
        await asyncio.sleep(0.02)
        assert len(work.futures) == 2
        for index in range(4):
            await until(has(work.futures, index + 1))
            work.release(index)
        for client in clients:
            assert await client.correlation_id() == 1


async def test_room_is_passed_on_by_those_who_do_not_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch, queued_max_requests=1) as harness:
        work = harness.handlers["metadata"] = Parked(MetadataResponse)
        first, gone, quick, last = [await harness.connect() for _ in range(4)]
        first.send(metadata_frame(1))
        await until(has(work.futures, 1))
        gone.send(metadata_frame(2))
        await until(has(harness.server.processor.channel._hungry, 1))
        quick.send(fetch_frame(3))
        await until(has(harness.server.processor.channel._hungry, 2))
        last.send(metadata_frame(4))
        await until(has(harness.server.processor.channel._hungry, 3))
        harness.server.processor.channel._hungry[0].close()
        work.release(0)
        assert await quick.correlation_id() == 3
        await until(has(work.futures, 2))
        work.release(1)
        assert await last.correlation_id() == 4


async def test_a_long_pipeline_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        greedy, modest = await harness.connect(), await harness.connect()
        greedy.send(b"".join(metadata_frame(n) for n in range(2000)))
        await asyncio.sleep(0)
        await modest.call(metadata_frame(-1))
        served = [context[2] for context in harness.contexts]
        assert served.index(-1) < 1999
        assert [await greedy.correlation_id() for _ in range(2000)] == list(range(2000))


async def test_a_kept_frame_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def keep(context: Any, request: Any) -> asyncio.Future[Any]:
        context.keep_frame()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        kept.append((request.topic_data[0].partition_data[0].records, future))
        return future

    async with Harness(monkeypatch) as harness:
        harness.handlers["produce"] = keep
        client, other = await harness.connect(), await harness.connect()
        contents = [bytes([n]) * (100 if n % 2 else 700_000) for n in range(6)]
        for n, content in enumerate(contents):
            client.send(produce_frame(n, content, acks=-1))
            await until(has(kept, n + 1))
            await other.call(metadata_frame(n))
        assert [bytes(records) for records, _ in kept] == contents
        assert harness.server.processor.budget.used >= 6 * 100
        for _, future in kept:
            future.set_result(ProduceResponse())
        kept.clear()
        assert [await client.correlation_id() for _ in range(6)] == list(range(6))
        await until(lambda: harness.server.processor.budget.used == 0)


async def test_throttled_connections_are_answered_and_then_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        harness.handlers["metadata"] = lambda context, request: MetadataResponse(throttle_time_ms=600)
        client = await harness.connect()
        loop = asyncio.get_running_loop()
        started = loop.time()
        client.send(metadata_frame(1) + metadata_frame(2))
        assert await client.correlation_id() == 1
        answered = loop.time()
        assert await client.correlation_id() == 2
        assert loop.time() - started >= 0.6
        assert loop.time() - answered > 0.1  # the first was not held back with the second


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(Errors.COORDINATOR_NOT_AVAILABLE, "later"), Errors.COORDINATOR_NOT_AVAILABLE),
        (ZeroDivisionError("oops"), Errors.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_errors_take_the_shape_of_the_response(
    asynchronous: bool,
    error: Exception,
    code: Errors,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def later() -> Any:
        raise error

    def fail(context: Any, request: Any) -> Any:
        if asynchronous:
            return later()
        raise error

    async with Harness(monkeypatch) as harness:
        harness.handlers["fetch"] = fail
        client = await harness.connect()
        answer, _ = codec.decode(FetchResponse, 7, await client.call(fetch_frame(3, 7)), 4)
        assert answer.error_code == code
        logged = [record for record in caplog.records if "Unexpected error" in record.getMessage()]
        assert len(logged) == (0 if isinstance(error, KafkaError) else 1)
        assert all(record.exc_info is None for record in logged)
        # Without a place for the error in the answer the connection is closed.
        client.send(fetch_frame(4))
        assert await client.is_closed()


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_close_connection_answers_what_came_before(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def later() -> Any:
        raise CloseConnection("no more")

    def fail(context: Any, request: Any) -> Any:
        if asynchronous:
            return later()
        raise CloseConnection("no more")

    async with Harness(monkeypatch) as harness:
        harness.handlers["fetch"] = fail
        parked = harness.handlers["produce"] = Parked(ProduceResponse)
        client = await harness.connect()
        client.send(produce_frame(1, acks=-1) + metadata_frame(2) + fetch_frame(3) + metadata_frame(4))
        await until(lambda: len(parked.futures) == 1)
        parked.release(0)
        assert [await client.correlation_id() for _ in range(2)] == [1, 2]
        assert await client.is_closed()
        assert [record.getMessage().split(": ")[-1] for record in caplog.records] == ["no more"]
        assert not harness.connections


async def test_a_failed_produce_without_acks_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(context: Any, request: Any) -> Any:
        raise KafkaError(Errors.KAFKA_STORAGE_ERROR)

    async with Harness(monkeypatch) as harness:
        harness.handlers["produce"] = fail
        client = await harness.connect()
        client.send(produce_frame(1, acks=0))
        assert await client.is_closed()


async def test_half_closed_peers_get_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        fetches = harness.handlers["fetch"] = Parked(FetchResponse)
        produces = harness.handlers["produce"] = Parked(ProduceResponse)
        one, two = await harness.connect(), await harness.connect()
        one.send(fetch_frame(1) + metadata_frame(2))
        two.send(produce_frame(1, acks=-1))
        one.writer.write_eof()
        two.writer.write_eof()
        await until(lambda: len(fetches.futures) == len(produces.futures) == 1)
        await asyncio.sleep(0.02)
        fetches.release(0)
        produces.release(0)
        assert [await one.correlation_id(), await one.correlation_id(), await two.correlation_id()] == [1, 2, 1]
        assert await one.is_closed() and await two.is_closed()
        await until(lambda: not harness.connections)


async def test_a_reset_while_an_answer_is_outstanding(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(monkeypatch) as harness:
        parked = harness.handlers["fetch"] = Parked(FetchResponse)
        client = await harness.connect()
        client.send(fetch_frame(1))
        await until(lambda: len(parked.futures) == 1)
        client.reset()
        await until(lambda: not harness.connections)  # at once, not when the answer is there
        parked.release(0)
        assert await (await harness.connect()).call(metadata_frame(1))
