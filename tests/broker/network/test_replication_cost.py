"""What an acks=all produce of one record costs its leader, with two followers: system calls and garbage."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from pybroker.broker.apis import fetch, produce
from pybroker.broker.fetch_sessions import FetchSessionCache
from pybroker.config import Endpoint
from pybroker.protocol.codec import decode
from pybroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from pybroker.protocol.messages.produce import ProduceResponse
from pybroker.replication.fetch import Ask, PartitionReader
from pybroker.replication.partition import Partition
from tests.broker.network.harness import Harness, message_frame, produce_frame
from tests.broker.network.test_cost import CALLS, CountingSocket
from tests.replication.test_partition import partition, state
from tests.support.records import batch

LISTENER = Endpoint("PLAINTEXT", "127.0.0.1", 0, "PLAINTEXT")
FETCH_VERSION = 12


class Peer:
    """The other end of a connection that the broker's sockets are counted on."""

    def __init__(self, harness: Harness) -> None:
        ours, self.socket = socket.socketpair()
        counting = CountingSocket(fileno=ours.detach())
        counting.setblocking(False)
        self.socket.setblocking(False)
        harness.server.processor.adopt(counting, LISTENER, ("127.0.0.1", 1), lambda: None)

    async def send(self, frame: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, frame)

    async def answer(self) -> bytes:
        """Without its size field and correlation id."""
        async with asyncio.timeout(10):
            return (await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16))[8:]


class Follower(Peer):
    """Fetches partition 0 of topic t in a session, from where it is."""

    def __init__(self, harness: Harness, broker_id: int) -> None:
        super().__init__(harness)
        self.broker_id = broker_id
        self.offset = self.session_id = self.epoch = 0

    async def fetch(self) -> None:
        wanted = FetchPartition(partition=0, fetch_offset=self.offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            replica_id=self.broker_id, max_wait_ms=9000, min_bytes=1, max_bytes=1 << 20,
            session_id=self.session_id, session_epoch=self.epoch, topics=[FetchTopic(topic="t", partitions=[wanted])],
        )  # fmt: skip
        await self.send(message_frame(request, FETCH_VERSION, self.epoch))

    async def follow(self) -> None:
        response, _ = decode(FetchResponse, FETCH_VERSION, (await self.answer())[1:])
        assert isinstance(response, FetchResponse)
        assert response.responses[0].partitions[0].records
        self.session_id, self.epoch, self.offset = response.session_id, self.epoch + 1, self.offset + 1
        await self.fetch()


def serve(harness: Harness, led: Partition) -> None:
    """The harness answers as a broker that hosts this partition."""
    services = harness.apis._services
    services.timer, services.fetch_max_bytes = harness.timer, 1 << 20
    services.replica_manager = SimpleNamespace(topics={"t": {0: led}})
    services.metadata_cache = SimpleNamespace(topic_name=lambda topic_id: "t")
    services.fetch_sessions = FetchSessionCache(10, lambda: 0)
    services.partition_reader = PartitionReader(lambda topic, index: led, lambda: 0)
    harness.handlers["produce"] = produce.handle
    harness.handlers["fetch"] = fetch.handle


async def test_a_receive_and_a_send_a_peer_and_no_garbage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    led = partition(tmp_path)
    led.make_leader(state(replicas=(1, 2, 3)), 0)
    async with Harness(monkeypatch) as harness:
        serve(harness, led)
        client, followers = Peer(harness), [Follower(harness, 2), Follower(harness, 3)]
        for follower in followers:
            await follower.fetch()

        async def go(count: int) -> None:
            for _ in range(count):
                await client.send(produce_frame(1, batch([b"x"]), acks=-1))
                for follower in followers:
                    await follower.follow()
                response, _ = decode(ProduceResponse, 7, await client.answer())
                assert isinstance(response, ProduceResponse)
                row = response.responses[0].partition_responses[0]
                assert (row.error_code, row.base_offset) == (0, followers[0].offset - 1)

        await go(20)
        CALLS.clear()
        gc.collect()
        gc.disable()
        try:
            await go(100)
            left = gc.collect()
        finally:
            gc.enable()
        assert CALLS == {"recv": 300, "send": 300}
        assert left < 100, left
        assert {type(each) for each in led.watchers} == {Ask}
        client.socket.close()
        for follower in followers:
            follower.socket.close()
