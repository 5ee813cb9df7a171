"""Records that are converted for an old consumer while they are sent: what a Fetch 0-3 has in place of a slice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pybroker.protocol.records.down_convert import ConversionFailed, DownConversion
from pybroker.protocol.work import Workshop
from pybroker.storage.files import FileSlice


class ConvertedRecords:
    """A part of an answer, of a length that is known, whose bytes are made when the connection can send them.

    One chunk at a time is held. Belongs to the event loop; whoever gets it must `release` it, which lets go of the
    slice too.
    """

    __slots__ = ("_chunk", "_conversion", "_failure", "_on_ready", "_slice", "_task", "_workshop")

    def __init__(self, piece: FileSlice, conversion: DownConversion, workshop: Workshop) -> None:
        """`conversion` is one of `piece`, and has begun."""
        self._slice = piece
        self._conversion = conversion
        self._workshop = workshop
        self._chunk = memoryview(b"")
        self._failure: Exception | None = None
        self._on_ready: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return self._conversion.length

    @property
    def finished(self) -> bool:
        """Whether all of it was taken."""
        return not self._chunk and not self._conversion.left and self._task is None

    @property
    def chunk(self) -> memoryview:
        """What can be sent now; empty where it has yet to be made. ConnectionError where that failed."""
        if self._failure is not None:
            raise ConnectionError(f"records of {self._slice.file.path} can't be converted: {self._failure}")
        return self._chunk

    def taken(self, count: int) -> None:
        """So many bytes of the chunk were sent."""
        self._chunk = self._chunk[count:]

    def make(self, on_ready: Callable[[], None]) -> None:
        """Make the next chunk, then call `on_ready`, unless this was released."""
        self._on_ready = on_ready
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._convert())

    async def _convert(self) -> None:
        try:
            self._chunk = await self._workshop.do(self._conversion.chunk())
            if not self._slice.intact:
                self._failure = ConversionFailed("the log was truncated below")
        except Exception as error:  # told when the connection, which waits for this, is closed for it
            self._failure = error
        self._task = None
        if self._on_ready is not None:
            self._on_ready()

    def release(self) -> None:
        """Give up what was not sent; once."""
        self._on_ready = None
        self._chunk = memoryview(b"")
        if self._task is None:
            self._slice.release()
        else:  # a thread may be reading the file
            self._task.add_done_callback(lambda _: self._slice.release())
            self._task.cancel()
