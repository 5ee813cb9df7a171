"""`pybroker health`: whether the broker at an address is fit to serve, asked over the wire as a client would.

Fit is who answers, is a registered member of its cluster, knows a controller, and is in sync with all its replicas. A
ZooKeeper that can't be reached makes nobody unfit: brokers serve on without it (`broker/health.py` logs it).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable
from typing import NamedTuple

from pybroker.protocol.connection import BrokerConnection
from pybroker.protocol.errors import KafkaError
from pybroker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from pybroker.protocol.messages.metadata import MetadataRequest, MetadataResponse

FIT, UNFIT = 0, 1
DEFAULT_ADDRESS = "127.0.0.1:9092"
TIMEOUT_SECONDS = 5.0
METADATA, METADATA_VERSION = 3, 12
DESCRIBE_CONFIGS, DESCRIBE_CONFIGS_VERSION = 32, 4
BROKER = 4  # the type of a resource
MOST_NAMED = 5


class Unreachable(Exception):
    """No broker answers there; the message says why."""


class Examination(NamedTuple):
    """What a broker told: its id (-1: it is none of those it knows), the live brokers and the controller that it knows
    (-1: none), and its partitions, of those that have a leader the ones in whose in-sync set it is not."""

    broker_id: int
    brokers: frozenset[int]
    controller_id: int
    partitions: int
    behind: tuple[str, ...]

    def troubles(self) -> list[str]:
        """Why it is not fit to serve, empty if it is."""
        found = []
        if self.broker_id < 0:
            found.append("it is not registered")
        if self.controller_id < 0:
            found.append("it knows no controller")
        if self.behind:
            named = ", ".join(self.behind[:MOST_NAMED]) + (", ..." if len(self.behind) > MOST_NAMED else "")
            found.append(f"{len(self.behind)} of its {self.partitions} replicas are not in sync: {named}")
        return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `pybroker health`."""
    parser.set_defaults(run=_run)
    where = f"the broker; default {DEFAULT_ADDRESS}"
    parser.add_argument("--bootstrap-server", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help=where)
    when = f"for its answer; default {TIMEOUT_SECONDS:g}"
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS", help=when)


def _run(arguments: argparse.Namespace) -> int:
    host, colon, port = arguments.bootstrap_server.rpartition(":")
    if not colon or not port.isdecimal():
        print(f"pybroker: --bootstrap-server {arguments.bootstrap_server}: must be HOST:PORT", file=sys.stderr)
        return 2
    try:
        found = asyncio.run(examine(host.strip("[]"), int(port), timeout_seconds=arguments.timeout))
    except Unreachable as error:
        print(f"unfit: {error}")
        return UNFIT
    if troubles := found.troubles():
        print(f"unfit: {'; '.join(troubles)}")
        return UNFIT
    print(
        f"fit: broker {found.broker_id} of {len(found.brokers)}, {found.partitions} replicas in sync, "
        f"controller {found.controller_id}"
    )
    return FIT


async def examine(
    host: str, port: int, *, with_partitions: bool = True, timeout_seconds: float = TIMEOUT_SECONDS
) -> Examination:
    """Asks a broker, pybroker or Apache Kafka (since 1.1). Raises Unreachable."""
    connection = BrokerConnection(host, port, "health", asyncio.get_running_loop())
    try:
        async with asyncio.timeout(timeout_seconds):
            version = await connection.highest_version(METADATA, METADATA_VERSION)
            asked = MetadataRequest(topics=None if with_partitions else [], allow_auto_topic_creation=False)
            metadata: MetadataResponse = await connection.send(asked, version)
            brokers = [each.node_id for each in metadata.brokers]
            return _examination(metadata, await _own_id(connection, brokers))
    except TimeoutError:
        raise Unreachable(f"{connection} did not answer within {timeout_seconds:g} s") from None
    except (OSError, KafkaError) as error:
        raise Unreachable(str(error)) from error
    finally:
        connection.close()


async def _own_id(connection: BrokerConnection, brokers: Iterable[int]) -> int:
    """Which of these is the one asked: only that one tells its settings. -1 for none."""
    version = await connection.highest_version(DESCRIBE_CONFIGS, DESCRIBE_CONFIGS_VERSION)
    resources = [
        DescribeConfigsResource(resource_type=BROKER, resource_name=str(each), configuration_keys=["broker.id"])
        for each in brokers
    ]
    response: DescribeConfigsResponse = await connection.send(DescribeConfigsRequest(resources=resources), version)
    return next((int(each.resource_name) for each in response.results if not each.error_code), -1)


def _examination(metadata: MetadataResponse, broker_id: int) -> Examination:
    hosted = [
        (f"{topic.name}-{partition.partition_index}", partition)
        for topic in metadata.topics
        for partition in topic.partitions
        if broker_id in partition.replica_nodes
    ]
    behind = [name for name, partition in hosted if partition.leader_id >= 0 and broker_id not in partition.isr_nodes]
    brokers = frozenset(each.node_id for each in metadata.brokers)
    return Examination(broker_id, brokers, metadata.controller_id, len(hosted), tuple(behind))
