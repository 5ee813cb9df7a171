"""Which metadata store this broker uses: ZooKeeper where zookeeper.connect says so, else a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.controller.embedded_store import FILE_NAME, EmbeddedStore
from pybroker.controller.store import MetadataStore

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig


async def open_store(config: BrokerConfig, directories: list[Path]) -> MetadataStore:
    """Raises StoreError when it can't be opened or reached."""
    if not config.zookeeper:
        return await EmbeddedStore.open(_embedded_path(config, directories))
    # With kazoo, which nobody else needs.
    from pybroker.broker.zookeeper_settings import zookeeper_settings
    from pybroker.controller.zookeeper_store import ZooKeeperStore

    return await ZooKeeperStore.connect(zookeeper_settings(config))


def _embedded_path(config: BrokerConfig, directories: list[Path]) -> Path:
    """In metadata.dir, or directly in the first log directory: Kafka refuses directories it doesn't know, not files."""
    directory = Path(config.opt_str("metadata.dir") or directories[0])
    directory.mkdir(parents=True, exist_ok=True)
    return directory / FILE_NAME
