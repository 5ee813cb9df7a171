"""One child process: started, waited for, told to stop, killed; what it says goes to a file."""

from __future__ import annotations

import abc
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LOG_TAIL = 4000  # characters of a child's log that an error shows
POLL_SECONDS = 0.005
PR_SET_PDEATHSIG = 1


class StartFailed(Exception):
    """The process ended, or was not ready in time; holds what it wrote."""


class StopFailed(Exception):
    """The process did not end in time, and was killed; holds what it wrote."""


class ChildProcess(abc.ABC):
    """A server that may be run again and again; `output` gets what it writes, over restarts.

    A `bound` child dies with this process, however that ends (Linux). It may only be started from the main thread:
    the kernel binds it to the thread.
    """

    def __init__(self, output: Path, *, bound: bool = False) -> None:
        self.output = output
        self.bound = bound
        self.process: subprocess.Popen[bytes] | None = None

    @abc.abstractmethod
    def begin(self) -> None:
        """Spawns it. Raises OSError."""

    @property
    @abc.abstractmethod
    def serving(self) -> bool:
        """Whether it serves; of one that was spawned."""

    def spawn(self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        """Starts it in a session of its own: Ctrl-C in a terminal reaches only who started it. Raises OSError."""
        if self.process is not None:
            raise RuntimeError(f"{command[0]} runs already")
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                env=env,
                start_new_session=True,
                preexec_fn=_die_with_parent() if self.bound else None,
            )

    def wait_ready(self, timeout: float) -> None:
        """Returns when it serves. Raises StartFailed; then it is gone."""
        deadline = time.monotonic() + timeout
        while not self.is_ready(deadline):
            time.sleep(POLL_SECONDS)

    def is_ready(self, deadline: float) -> bool:
        """Whether it serves. Raises StartFailed when it has ended, or when time.monotonic() is past the deadline."""
        if self.serving:
            return True
        if (code := self.ended()) is not None:
            raise StartFailed(f"exit code {code}:\n{self.log_tail()}")
        if time.monotonic() > deadline:
            self.kill()
            raise StartFailed(f"not ready in time:\n{self.log_tail()}")
        return False

    def ended(self) -> int | None:
        """The exit code once, when it has ended by itself; None while it runs or when that was told."""
        code = None if self.process is None else self.process.poll()
        if code is not None:
            self.process = None
        return code

    def terminate(self) -> None:
        """SIGTERM, if it runs."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self, timeout: float = 30) -> int:
        """SIGTERM, then wait; the exit code, 0 if it did not run. Raises StopFailed."""
        if self.process is None:
            return 0
        self.terminate()
        return self.wait(timeout)

    def wait(self, timeout: float = 30) -> int:
        """Its exit code, when it has ended. Raises StopFailed."""
        assert self.process is not None
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise StopFailed(f"no shutdown within {timeout} s:\n{self.log_tail()}") from None
        self.process = None
        return code

    def kill(self) -> None:
        """SIGKILL, as a crash; returns when it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log_text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def log_tail(self) -> str:
        return self.log_text()[-LOG_TAIL:]


def _die_with_parent() -> Callable[[], None] | None:
    """Called in the child before it becomes the command: from then on the kernel kills it when its parent ends."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # found here: a forked child should do as little as possible
    parent = os.getpid()

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended meanwhile
            os._exit(1)

    return bind
