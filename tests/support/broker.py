"""Runs `pybroker start` as a child process for a test."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pybroker.broker.cluster.process import ChildProcess
from tests.support.wire import WireClient

ROOT = Path(__file__).resolve().parents[2]
# A traceback, or asyncio's words for an exception that nobody took.
CRASH = re.compile(
    r"Traceback \(most recent call last\)|was never retrieved|was never awaited|Exception ignored in|Segmentation fault"
)


def broker_environment() -> dict[str, str]:
    """The test's environment without KAFKA_* and PYBROKER_*, which would be settings."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("KAFKA_", "PYBROKER_"))}
    path = os.pathsep.join(filter(None, [str(ROOT / ".src"), os.environ.get("PYTHONPATH")]))
    return inherited | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def free_port() -> int:
    """A port that nobody listens on and no outgoing connection will be given: a broker can come back to it."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class BrokerProcess(ChildProcess):
    """A broker with its data in data_dir, on a free port (or `port`; 0 lets the system choose).

    start() on entering the context, stop() on leaving it: a broker that hangs is killed and fails the test.
    Its own output goes to data_dir/../<name>.out, over restarts. Leaving the context fails the test when the log
    shows a traceback, unless allow_traceback.
    """

    def __init__(
        self,
        data_dir: Path | str,
        overrides: Mapping[str, Any] | None = None,
        port: int | None = None,
        *,
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        allow_traceback: bool = False,
        start_timeout: float = 60,
    ) -> None:
        self.data_dir = Path(data_dir)
        self.overrides = dict(overrides or {})
        self.arguments, self.environment, self.start_timeout = arguments, dict(environment or {}), start_timeout
        self.allow_traceback = allow_traceback
        self.wanted_port, self.port, self.host = free_port() if port is None else port, 0, "127.0.0.1"
        self.ready: dict[str, Any] = {}
        super().__init__(self.data_dir.parent / f"{self.data_dir.name}.out")
        self.ready_file = self.data_dir.parent / f"{self.data_dir.name}.ready"
        self.start_seconds = 0.0

    # life
    def start(self) -> BrokerProcess:
        began = time.monotonic()
        self.begin()
        self.wait_ready(self.start_timeout)
        self.start_seconds = time.monotonic() - began
        self.ready = json.loads(self.ready_file.read_text())
        self.host, self.port = self.ready["host"], self.ready["port"]
        return self

    def begin(self) -> None:
        self.ready_file.unlink(missing_ok=True)
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        self.spawn(self.command(), cwd=self.data_dir.parent, env=broker_environment() | self.environment)

    @property
    def serving(self) -> bool:
        return self.ready_file.exists()

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "pybroker", "start", *self.arguments, "--port", str(self.wanted_port)]
        command += ["--data-dir", str(self.data_dir), "--ready-file", str(self.ready_file)]
        for key, value in self.overrides.items():
            command += ["--override", f"{key}={value}"]
        return command

    def restart(self, *, kill: bool = False) -> BrokerProcess:
        """Stops (or kills) and starts again on the same port and data."""
        self.kill() if kill else self.stop()
        self.wanted_port = self.port or self.wanted_port
        return self.start()

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self.kill()
        if kind is None and not self.allow_traceback:
            self.check_log()

    # looking at it
    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def client(self, **options: Any) -> WireClient:
        return WireClient(self.host, self.port, **options)

    def check_log(self) -> None:
        """Fails when the log shows a traceback."""
        text = self.log_text()
        found = CRASH.search(text)
        assert not found, f"the broker's log shows:\n{text[max(0, found.start() - 500) : found.start() + 3000]}"

    def memory_mb(self) -> float:
        """Proportional set size of the process, MB (Linux)."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no Pss line")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class TwoDirectories(BrokerProcess):
    """Its log directories are x and y in `data_dir`."""

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("--data-dir") + 1
        return [*command[:at], f"{self.data_dir}/x,{self.data_dir}/y", *command[at + 1 :]]


def wait_until(condition: Any, timeout: float = 10, what: str = "the condition") -> Any:
    """Calls condition() until it returns something true; returns that."""
    deadline = time.monotonic() + timeout
    while True:
        if result := condition():
            return result
        assert time.monotonic() < deadline, f"{what} did not come within {timeout} s"
        time.sleep(0.01)
