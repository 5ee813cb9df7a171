"""Apache Kafka as a Node of the rounds of tests/faults/cluster_rounds.py, and what kinds of complaints it logs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.cluster_rounds import ProcessNode
from tests.support.broker import wait_until
from tests.support.kafka import KafkaBroker
from tests.support.zookeeper import ZooKeeperServer

SESSION_END_S = 60.0
START_ATTEMPTS = 3
START_S = 300.0  # recovery included
_LINE = re.compile(r"\[[^]]*\] (WARN|ERROR|FATAL) (.*) \((\S+)\)(?=\n?(.*))")
#: The cause that follows a complaint of nothing but a broker that is gone: the rounds kill them at any moment.
_GONE = re.compile(r"java\.io\.IOException: Connection to \S+ \(id: \d+ rack: \S+\) failed\.$")
#: What is taken out of a line to get its kind, in this order: everything in brackets, paths, then names and numbers.
_IN_BRACKETS = re.compile(r"\([^()]*\)|\[[^][]*\]|\{[^{}]*\}")
_PATHS = re.compile(r"(?<!\w)/\S+")
_PARTITIONS = re.compile(r"(?:[\w.%-]+-\d+(?:, ?)?)+")
_NAMES = re.compile(r"(?<!\w)(?:0x\w+|-?\d[\w.:-]*|[\w-]{22}(?!\w))")


class KafkaNode(ProcessNode):
    """See cluster_rounds.Node."""

    def __init__(
        self, broker_id: int, directory: Path, zookeeper: ZooKeeperServer, settings: Mapping[str, Any]
    ) -> None:
        folder = directory / f"b{broker_id}"
        texts = {name: str(value) for name, value in settings.items() if name != "zookeeper.connect"}
        self._zookeeper = zookeeper
        self._kafka = KafkaBroker(folder, folder / "data", settings["zookeeper.connect"], broker_id, texts)
        super().__init__(broker_id, folder / "data", self._kafka)

    @property
    def address(self) -> str:
        return self._kafka.address

    def start(self) -> None:
        """Once its registration from before is gone: it exits otherwise, and also when its session expires while it
        starts, as it may on a busy machine."""
        for left in reversed(range(START_ATTEMPTS)):
            wait_until(lambda: not self._is_registered(), SESSION_END_S, f"the end of {self.broker_id}'s session")
            try:
                self._kafka.start(START_S)
            except AssertionError as error:
                self._kafka.kill()
                if not left or "SessionExpiredException" not in str(error):
                    raise
            else:
                break
        self.running = True

    def new_log_text(self) -> str:
        """Nothing: what Kafka complains of is compared with what it says to itself, see complaints()."""
        return ""

    def complaints(self) -> set[str]:
        """Kinds of warnings and errors so far."""
        return kinds(self._kafka.log_text())

    def _is_registered(self) -> bool:
        client = self._zookeeper.client()
        try:
            return client.exists(f"/brokers/ids/{self.broker_id}") is not None
        finally:
            client.stop()
            client.close()


def kinds(log: str) -> set[str]:
    """Level, logger and text of every warning and error, without names, numbers and what stands in brackets; but for
    those whose cause is that a connection to a broker could not be made."""
    return {
        f"{level} {logger} {kind_of(text)}"
        for level, text, logger, cause in _LINE.findall(log)
        if not _GONE.match(cause)
    }


def kind_of(text: str) -> str:
    before = ""
    while before != text:
        before, text = text, _IN_BRACKETS.sub("", text)
    text = re.split(r"[({]|\[", text, maxsplit=1)[0]  # what was not closed
    return " ".join(_NAMES.sub("N", _PARTITIONS.sub("P ", _PATHS.sub("N", text))).split())
