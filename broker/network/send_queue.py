"""What one connection still has to send: pieces of memory, slices of files and records to be converted, in order."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable
from typing import Any

from pybroker.broker.conversion import ConvertedRecords
from pybroker.broker.network.sendfile import SendFile

_JOIN_MAX = 16 << 10  # below this, copying pieces together is cheaper than handing the kernel a list of them
_IOV_MAX = 256
_FILE_PIECE = 1 << 20  # of one slice in one go, so that a fast reader doesn't keep the loop
_FILE_PIECES = 4
_MORE = getattr(socket, "MSG_MORE", 0)  # the header of a Fetch answer waits for the file's bytes instead of going alone
_MEMORY = frozenset({bytes, bytearray, memoryview})


class SendQueue:
    """Parts to send. A part that isn't bytes-like is a FileSlice of storage/files.py or a ConvertedRecords."""

    __slots__ = ("_files", "_sendfile", "_sent_of_file", "awaited", "parts", "size")

    def __init__(self, sendfile: SendFile) -> None:
        self.parts: deque[Any] = deque()
        self.size = 0  # bytes not sent yet
        self.awaited: ConvertedRecords | None = None  # stands first, and its next bytes have yet to be made
        self._files = 0  # parts that aren't memory
        self._sent_of_file = 0  # of the slice that stands first
        self._sendfile = sendfile

    def __bool__(self) -> bool:
        return bool(self.parts)

    def add(self, parts: list[Any]) -> None:
        self.parts += parts
        for part in parts:
            self.size += len(part)
            if type(part) not in _MEMORY:
                self._files += 1

    def send(self, sock: socket.socket) -> bool:
        """Send what the socket takes; True when nothing is left. Otherwise `awaited`, if it isn't None, is what has to
        be made first. Raises OSError when the connection is broken, or when a part can't be had as it was promised."""
        parts = self.parts
        try:
            if self._files or self.size > _JOIN_MAX:
                return self._send_mixed(sock)
            if len(parts) > 1:
                data = b"".join(parts)
                parts.clear()
                parts.append(data)
            sent = sock.send(parts[0])
        except (BlockingIOError, InterruptedError):
            return False
        if sent == self.size:
            parts.clear()
            self.size = 0
            return True
        self._advance(sent)
        return False

    def close(self) -> None:
        """Give up what was not sent."""
        release(self.parts)
        self.parts.clear()
        self.size = self._files = 0
        self.awaited = None

    def _send_mixed(self, sock: socket.socket) -> bool:
        parts = self.parts
        self.awaited = None
        pieces = _FILE_PIECES
        while parts:
            if type(parts[0]) in _MEMORY:
                run, behind = self._memory_run()
                sent = sock.sendmsg(run, (), _MORE if behind else 0)
                self._advance(sent)
            elif type(parts[0]) is ConvertedRecords:
                if not self._send_converted(sock, parts[0]):
                    return False
            elif pieces:
                pieces -= 1
                self._send_file(sock, parts[0])
            else:
                return False
        return True

    def _memory_run(self) -> tuple[list[Any], bool]:
        """The pieces of memory at the front, and whether something follows them."""
        run: list[Any] = []
        for part in self.parts:
            if type(part) not in _MEMORY or len(run) == _IOV_MAX:
                return run, True
            run.append(part)
        return run, False

    def _send_file(self, sock: socket.socket, part: Any) -> None:
        done = self._sent_of_file
        left = len(part) - done
        if left:
            if not part.intact:
                raise ConnectionError("a log was truncated below a slice of it that was promised")
            sent = self._sendfile(sock, part.file.fd, part.position + done, min(left, _FILE_PIECE))
            if not sent:
                raise ConnectionError("a log file ended before the slice of it that was promised")
            self._sent_of_file += sent
            self.size -= sent
            left -= sent
        if not left:
            self.parts.popleft()
            self._files -= 1
            self._sent_of_file = 0
            part.release()

    def _send_converted(self, sock: socket.socket, part: ConvertedRecords) -> bool:
        """Whether there may be more to send at once."""
        chunk = part.chunk
        if chunk:
            sent = sock.send(chunk)
            part.taken(sent)
            self.size -= sent
        elif not part.finished:
            self.awaited = part
            return False
        if part.finished:
            self.parts.popleft()
            self._files -= 1
            part.release()
        return True

    def _advance(self, sent: int) -> None:
        """Drop `sent` bytes of memory from the front, and the empty pieces behind them."""
        self.size -= sent
        parts = self.parts
        while parts and type(parts[0]) in _MEMORY:
            length = len(parts[0])
            if sent < length:
                if sent:
                    parts[0] = memoryview(parts[0])[sent:]
                return
            sent -= length
            parts.popleft()


def release(parts: Iterable[Any]) -> None:
    """Let go of the files among parts that will not be sent."""
    for part in parts:
        if type(part) not in _MEMORY:
            part.release()
