"""Several of our brokers under one ZooKeeper, started from the plan and server files of `pybroker cluster up`.

Beside Apache Kafka's brokers: tests.support.cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pybroker.broker.cluster.local import LocalCluster, start_command
from pybroker.broker.cluster.plan import Plan
from tests.support.broker import BrokerProcess, free_port


class ClusterBroker(BrokerProcess):
    """A broker of a plan; what it says is in plan.log(broker_id)."""

    def __init__(self, plan: Plan, broker_id: int) -> None:
        super().__init__(plan.data_dir(broker_id), port=plan.ports[broker_id])
        self.plan, self.broker_id, self.port = plan, broker_id, plan.ports[broker_id]
        self.output, self.ready_file = plan.log(broker_id), plan.ready_file(broker_id)

    def command(self) -> list[str]:
        return start_command(self.plan, self.broker_id)


class OurCluster(LocalCluster):
    """Brokers 1 to `count` (or those in `ids`) with their files and data in `directory`. On entering all are started,
    ready, and know each other and the controller; on leaving they are stopped, and the test fails where a log shows a
    traceback.

    `zookeeper` is host:port/chroot of one that runs. `settings` are those of all brokers, `own` those of single ones.
    cluster[2] is broker 2: .kill() is kill -9, .stop() SIGTERM, .start() brings it back, .restart() is two of these.
    """

    brokers: dict[int, ClusterBroker]

    def __init__(
        self,
        zookeeper: str,
        directory: Path,
        settings: Mapping[str, Any] | None = None,
        *,
        count: int = 3,
        ids: Sequence[int] = (),
        own: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        plan = Plan(
            directory,
            {broker_id: free_port() for broker_id in ids or range(1, count + 1)},
            zookeeper,
            overrides=_texts({"group.initial.rebalance.delay.ms": 0, **(settings or {})}),
            own_overrides={broker_id: _texts(each) for broker_id, each in (own or {}).items()},
        )
        super().__init__(plan, bound=False)
        self.brokers = {broker_id: ClusterBroker(plan, broker_id) for broker_id in plan.ports}

    def start(self) -> OurCluster:
        for _ in self.up():
            pass
        return self

    def stop(self) -> None:
        """SIGTERM, one after the other; AssertionError for one that had to be killed."""
        assert not [line for line in self.down() if line]

    def __getitem__(self, broker_id: int) -> ClusterBroker:
        return self.brokers[broker_id]

    def __iter__(self) -> Iterator[ClusterBroker]:
        return iter(self.brokers.values())

    @property
    def running(self) -> dict[int, ClusterBroker]:
        return {broker_id: each for broker_id, each in self.brokers.items() if each.process is not None}

    @property
    def bootstrap(self) -> str:
        """The addresses of those that run."""
        return ",".join(each.address for each in self.running.values())

    def log_text(self) -> str:
        """What all have said, one broker's after the other's."""
        return "".join(each.log_text() for each in self)

    def __enter__(self) -> OurCluster:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
            return
        try:
            self.stop()
        finally:
            self.kill()
        for broker in self:
            broker.check_log()


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in settings.items()}
