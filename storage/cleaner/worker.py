"""A cleaning process: reads jobs from its standard input, writes messages to its standard output.

Each is a pickle behind its size in four bytes. Only the broker that started the process talks to it; it has low
priority, and ends when its input does, when it is killed, or when it finds that its parent is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
from typing import BinaryIO

from pybroker.storage.cleaner.job import Job, Message

SIZE = struct.Struct(">I")
_NICENESS = 10  # a tenth of the share that the broker gets where both want the same core


class WorkerDied(Exception):
    """The process ended before its job did."""


class Worker:
    """A cleaning process, from the broker's side."""

    __slots__ = ("_process",)

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Worker:
        """Start a process. OSError."""
        program = f"import sys; sys.path[:] = {sys.path!r}; from pybroker.storage.cleaner.worker import main; main()"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        return cls(process)

    async def give(self, job: Job) -> None:
        """Hand it a job. WorkerDied."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_packed(job))
            await self._process.stdin.drain()
        except OSError as error:
            raise WorkerDied from error

    async def receive(self) -> Message:
        """Its next message. WorkerDied."""
        import pickle  # 6 ms, which the start can do without

        assert self._process.stdout is not None
        try:
            (size,) = SIZE.unpack(await self._process.stdout.readexactly(SIZE.size))
            message: Message = pickle.loads(await self._process.stdout.readexactly(size))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise WorkerDied from error
        return message

    def kill(self) -> None:
        """End it at once, if it hasn't ended; returns before it has."""
        if self._process.returncode is None:
            try:
                self._process.kill()
            except ProcessLookupError:
                pass  # it ended by itself just now

    async def close(self) -> None:
        """End it and wait until it is gone."""
        self.kill()
        await self._process.wait()


def _packed(message: Job | Message) -> bytes:
    import pickle

    data = pickle.dumps(message)
    return SIZE.pack(len(data)) + data


def main() -> None:
    """The process."""
    from pybroker.storage.cleaner.cleaning import clean

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the broker's, which ends this one
    os.nice(_NICENESS)
    parent = os.getppid()

    def report(message: Message) -> None:
        data = memoryview(_packed(message))
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            os._exit(1)  # nobody reads it any more: nobody needs a word about that

    def alive() -> None:
        if os.getppid() != parent:
            os._exit(1)

    while (job := _read(sys.stdin.buffer)) is not None:
        clean(job, report, alive)


def _read(source: BinaryIO) -> Job | None:
    import pickle

    head = source.read(SIZE.size)
    if len(head) < SIZE.size:
        return None
    job: Job = pickle.loads(source.read(SIZE.unpack(head)[0]))
    return job
