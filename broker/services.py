"""What handlers find in their context: the broker's parts, by name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.broker.controller_orders import ControllerOrders
    from pybroker.broker.coordination import Coordination
    from pybroker.broker.fetch_sessions import FetchSessionCache
    from pybroker.broker.foreign_brokers import ForeignBrokers
    from pybroker.broker.metadata_cache import MetadataCache
    from pybroker.broker.store_watch import StoreWatch
    from pybroker.config import BrokerConfig
    from pybroker.controller.configs import ConfigRepository
    from pybroker.controller.controller import Controller
    from pybroker.controller.producer_ids import ProducerIds
    from pybroker.controller.store import MetadataStore
    from pybroker.controller.topics import TopicWriter
    from pybroker.coordinator.service import GroupCoordinator
    from pybroker.protocol.clock import Clock
    from pybroker.protocol.timer import Timer
    from pybroker.protocol.work import Workshop
    from pybroker.replication.fetch import PartitionReader
    from pybroker.replication.manager import ReplicaManager
    from pybroker.replication.quotas import ReplicationQuotas
    from pybroker.storage.log_manager import LogManager


@dataclass(slots=True)
class Services:
    """One object per broker, made in `server` and handed to every request.

    `reader_threads` run what has to wait for a disk; `fetch_max_bytes` is the setting fetch.max.bytes, kept here since
    every Fetch asks for it. The `workshop` converts records.
    """

    broker_id: int
    cluster_id: str
    config: BrokerConfig
    clock: Clock
    timer: Timer
    store: MetadataStore
    store_watch: StoreWatch
    log_manager: LogManager
    replica_manager: ReplicaManager
    orders: ControllerOrders
    partition_reader: PartitionReader
    replication_quotas: ReplicationQuotas
    fetch_sessions: FetchSessionCache
    fetch_max_bytes: int
    reader_threads: ThreadPoolExecutor
    workshop: Workshop
    metadata_cache: MetadataCache
    topics: TopicWriter
    configs: ConfigRepository
    producer_ids: ProducerIds
    coordination: Coordination
    foreign_brokers: ForeignBrokers
    controller: Controller = field(init=False)  # made last: it announces the ports that were bound

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator of groups; made now if nobody needed it before."""
        return self.coordination.groups
