"""From a file to a socket without passing through this process, where the system can."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable

# (socket, file descriptor, position, count) -> bytes sent; raises BlockingIOError when the socket takes none.
SendFile = Callable[[socket.socket, int, int, int], int]

_PIECE = 256 << 10
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})  # a file system that can't be spliced from


def portable_sendfile(sock: socket.socket, fd: int, position: int, count: int) -> int:
    """The same by way of memory, one piece a call. 0 means that the file ends at or before `position`."""
    data = os.pread(fd, min(count, _PIECE), position)
    return sock.send(data) if data else 0


def linux_sendfile(sock: socket.socket, fd: int, position: int, count: int) -> int:
    try:
        return os.sendfile(sock.fileno(), fd, position, count)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return portable_sendfile(sock, fd, position, count)


# Elsewhere os.sendfile differs in what it does with a count of 0, with partial sends and with non-blocking sockets.
default_sendfile: SendFile = linux_sendfile if sys.platform == "linux" else portable_sendfile
