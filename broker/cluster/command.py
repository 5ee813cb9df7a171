"""`pybroker cluster up`: runs a cluster of this machine until it is told to stop."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TextIO

from pybroker.broker.cluster.local import LocalCluster
from pybroker.broker.cluster.plan import (
    HOST,
    NO_ZOOKEEPER,
    ZOOKEEPER_PORT,
    Plan,
    consecutive_ports,
    known_zookeeper_port,
    parse_overrides,
)
from pybroker.broker.cluster.process import StartFailed
from pybroker.broker.cluster.zookeeper import NoZooKeeper
from pybroker.config.data_dir import default_data_dir

OK, FAILED, MISUSED = 0, 1, 2
FIRST_PORT = 9092
WATCH_SECONDS = 0.1
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions of `pybroker cluster`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    up = actions.add_parser("up", help="run brokers and a ZooKeeper on this machine until told to stop")
    up.set_defaults(run=_up)
    up.add_argument("--brokers", type=_count, default=3, metavar="N", help="how many; default 3")
    up.add_argument(
        "--zookeeper", metavar="HOST:PORT", help="one that runs, a /chroot may follow; default: start an installed one"
    )
    up.add_argument(
        "--data-dir", metavar="DIR", help="where data, server files and logs live; what is there is continued"
    )
    up.add_argument(
        "--port", type=int, default=FIRST_PORT, metavar="BASE", help="the first broker's; the others' follow it"
    )
    up.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="a setting of all brokers; repeatable"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not a number of brokers between 1 and 100")
    return int(text)


def _up(arguments: argparse.Namespace) -> int:
    directory = Path(arguments.data_dir or default_data_dir() / "cluster").absolute()
    if not 1 <= arguments.port <= 65536 - arguments.brokers:
        _tell(f"--port {arguments.port} leaves no ports for {arguments.brokers} brokers")
        return MISUSED
    try:
        overrides = parse_overrides(arguments.override)
    except ValueError as error:
        _tell(str(error))
        return MISUSED
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / ".lock").open("w") as lock:
            if not _locked(lock):
                _tell(f"another `cluster up` runs in {directory}")
                return FAILED
            port = NO_ZOOKEEPER if arguments.zookeeper else _zookeeper_port(directory)
            plan = Plan(
                directory,
                consecutive_ports(arguments.brokers, arguments.port),
                arguments.zookeeper or f"{HOST}:{port}",
                port,
                overrides,
            )
            return _Run(LocalCluster(plan)).run()
    except NoZooKeeper as error:
        _tell(f"{error} (--zookeeper HOST:PORT)")
    except OSError as error:
        _tell(str(error))
    return FAILED


def _locked(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _zookeeper_port(directory: Path) -> int:
    """The one from before, else ZooKeeper's own, else a free one."""
    known = known_zookeeper_port(directory)
    if known is not None:
        return known
    for port in (ZOOKEEPER_PORT, 0):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            free: int = probe.getsockname()[1]
            return free
    raise OSError("no port is free")


class _Run:
    """One run of a cluster. The first signal stops it in order, a second one ends all at once."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.stopping = False
        for number in STOP_SIGNALS:
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            self.cluster.kill()
            os._exit(128 + number)
        self.stopping = True

    def run(self) -> int:
        """Until a signal, or the end of the last broker."""
        try:
            if self._start():
                plan = self.cluster.plan
                text = f"The cluster is ready: bootstrap.servers={plan.bootstrap} (data in {plan.directory})"
                print(text, flush=True)
            while not self.stopping:
                if not self._look():
                    _tell("no broker is left")
                    return FAILED
                time.sleep(WATCH_SECONDS)
            return OK
        except StartFailed as error:
            _tell(str(error))
            return FAILED
        finally:
            self._stop()

    def _start(self) -> bool:
        """False when a signal has ended it."""
        return all(not self.stopping for _ in self.cluster.up())

    def _look(self) -> bool:
        """Tells of those that have ended. Whether a broker is left."""
        for name, child in self.cluster.children().items():
            if (code := child.ended()) is not None:
                _tell(f"{name} has ended with exit code {code}: see {child.output}")
        return any(each.process is not None for each in self.cluster.brokers.values())

    def _stop(self) -> None:
        self.stopping = True  # from here on the next signal ends all at once
        for line in self.cluster.down():
            if line:
                _tell(line)


def _tell(line: str) -> None:
    print(f"pybroker: {line}", file=sys.stderr, flush=True)
