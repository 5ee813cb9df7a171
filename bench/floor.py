#!/usr/bin/env python3
"""The floor: what one plain Python process makes of the raw loads with none of a broker's other duties.

    floor.py PORT DIRECTORY

It receives, checks the CRC, assigns the offset, writes and answers, and sends files with sendfile, on raw non-blocking
sockets and uvloop, one file a partition. No index, no limit, no error, no other API than Produce 7 and Fetch 11. A
broker cannot beat it; how near it comes tells what its design costs.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import sys

import uvloop
from crc32c import crc32c

BUFFER_BYTES = 1 << 18
_FIRST = 4 + 2 + 2 + 4  # size, API key, version, correlation id; the client id follows


class Partition:
    """A file, the next offset, and where each batch begins."""

    def __init__(self, directory: str, index: int) -> None:
        self.fd = os.open(os.path.join(directory, f"floor-{index}"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.next_offset = self.size = 0
        self.position: dict[int, int] = {}

    def append(self, records: memoryview, count: int) -> int:
        offset = self.next_offset
        os.write(self.fd, records)
        self.position[offset] = self.size
        self.next_offset += count
        self.size += len(records)
        return offset


class Floor:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._partitions: dict[int, Partition] = {}

    def _partition(self, index: int) -> Partition:
        if index not in self._partitions:
            self._partitions[index] = Partition(self._directory, index)
        return self._partitions[index]

    def produce(self, buffer: memoryview, start: int, end: int) -> bytes:
        at = start + _FIRST + 2 + int.from_bytes(buffer[start + 12 : start + 14], "big")
        at += 2 + 2 + 4 + 4  # no transactional id, acks, timeout, one topic
        topic = bytes(buffer[at : at + 2 + int.from_bytes(buffer[at : at + 2], "big")])
        at += len(topic) + 4
        index, _ = struct.unpack_from(">ii", buffer, at)
        at += 8
        if crc32c(buffer[at + 21 : end]) != struct.unpack_from(">I", buffer, at + 17)[0]:
            raise SystemExit("a batch with a wrong CRC")
        partition = self._partition(index)
        struct.pack_into(">q", buffer, at, partition.next_offset)
        base = partition.append(buffer[at:end], struct.unpack_from(">i", buffer, at + 23)[0] + 1)
        correlation_id = struct.unpack_from(">i", buffer, start + 8)[0]
        body = struct.pack(">ii", correlation_id, 1) + topic + struct.pack(">iihqqqi", 1, index, 0, base, -1, 0, 0)
        return struct.pack(">i", len(body)) + body

    def fetch(self, buffer: memoryview, start: int, connection: socket.socket) -> None:
        at = start + _FIRST + 2 + int.from_bytes(buffer[start + 12 : start + 14], "big") + 25 + 4
        topic = bytes(buffer[at : at + 2 + int.from_bytes(buffer[at : at + 2], "big")])
        at += len(topic) + 4
        index, _, offset, _, limit = struct.unpack_from(">iiqqi", buffer, at)
        partition = self._partition(index)
        position = partition.position.get(offset, partition.size)
        size = min(limit, partition.size - position)
        end = partition.next_offset
        body = struct.pack(">iihii", struct.unpack_from(">i", buffer, start + 8)[0], 0, 0, 0, 1) + topic
        body += struct.pack(">iihqqqiii", 1, index, 0, end, end, 0, 0, -1, size)
        connection.send(struct.pack(">i", len(body) + size) + body)
        writable = select.poll()
        writable.register(connection, select.POLLOUT)
        while size:
            try:
                sent = os.sendfile(connection.fileno(), partition.fd, position, size)
            except BlockingIOError:
                writable.poll()
            else:
                position, size = position + sent, size - sent


class Connection:
    def __init__(self, floor: Floor, loop: asyncio.AbstractEventLoop, connected: socket.socket) -> None:
        self._floor, self._loop, self._socket = floor, loop, connected
        self._buffer, self._have = memoryview(bytearray(BUFFER_BYTES)), 0
        loop.add_reader(connected.fileno(), self._readable)

    def _readable(self) -> None:
        buffer = self._buffer
        try:
            count = self._socket.recv_into(buffer[self._have :])
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            return
        have, at, answers = self._have + count, 0, []
        while have - at >= 4 and have - at >= (size := struct.unpack_from(">i", buffer, at)[0] + 4):
            if int.from_bytes(buffer[at + 4 : at + 6], "big") == 0:
                answers.append(self._floor.produce(buffer, at, at + size))
            else:
                self._floor.fetch(buffer, at, self._socket)
            at += size
        if answers:
            try:
                self._socket.send(b"".join(answers))
            except OSError:
                pass  # it has gone; the next read says so
        self._have = have - at
        if at and self._have:
            buffer[: self._have] = bytes(buffer[at:have])


async def serve(port: int, directory: str) -> None:
    floor, loop = Floor(directory), asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    listener.setblocking(False)
    while True:
        connected, _ = await loop.sock_accept(listener)
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Connection(floor, loop, connected)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
