"""The consumer protocol (KIP-848) with real clients, each member a process of its own: they come, leave, are killed,
restart as static members; they meet members of the classic protocol in one group; the broker crashes.

Also scripts recorded from Apache Kafka 4.3.1, over the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import consumer_scripts, java
from tests.support.broker import BrokerProcess, wait_until
from tests.support.groups import PARTITIONS, Group, Member, come_and_go, lasting_port, making_groups, restart_static
from tests.support.records import batch

QUICK = {
    "offsets.topic.num.partitions": 5,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 2500,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.assignment.interval.ms": 100,
}
MakeGroup = Callable[[str], Group]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(Path(tmp_path_factory.mktemp("consumer-protocol")) / "data", QUICK) as running:
        yield running


@pytest.fixture
def groups(broker: BrokerProcess) -> Iterator[MakeGroup]:
    with making_groups(broker) as make:
        yield lambda assignor: make("confluent-kafka", assignor, protocol="consumer")


def state(group: Group) -> str:
    with group.broker.client() as wire:
        request = {"GroupIds": [group.topic], "IncludeAuthorizedOperations": False}
        return str(wire.call("ConsumerGroupDescribe", 1, request)["Groups"][0]["GroupState"])


def listed_type(group: Group) -> str:
    with group.broker.client() as wire:
        listed = wire.call("ListGroups", 5, {"StatesFilter": [], "TypesFilter": []})["Groups"]
    return str(next(each["GroupType"] for each in listed if each["GroupId"] == group.topic))


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_and_go(groups: MakeGroup, assignor: str) -> None:
    group = groups(assignor)
    come_and_go(group)
    wait_until(lambda: state(group) == "Empty", 10, "an empty group")


def test_a_static_member_restarts_without_a_rebalance(groups: MakeGroup) -> None:
    restart_static(groups("uniform"), Member.leave)


def test_the_first_record_waits_for_no_second_heartbeat(groups: MakeGroup) -> None:
    group = groups("uniform")
    group.produce(1)
    member = group.start()
    group.wait_consumed()
    first = next(each["at"] for each in member.events if each["event"] == "records")
    assigned = next(each["at"] for each in member.events if each["event"] == "assigned")
    assert first - assigned < 5  # heartbeats are five seconds apart


def test_members_of_both_protocols_share_a_group(groups: MakeGroup) -> None:
    """A group of classic members is taken over one by one, and given back."""
    group = groups("range")
    group.produce()
    group.settings |= {"protocol": "classic", "session_ms": 3000}
    old_one, old_two = group.start(), group.start()
    group.wait_settled()
    group.wait_consumed()
    assert listed_type(group) == "classic"

    group.settings["protocol"] = "consumer"
    new_one = group.start()
    group.wait_settled(30)
    assert listed_type(group) == "consumer"
    group.produce()
    group.wait_consumed()

    group.remove(old_one)
    old_one.leave()
    group.wait_settled(30)
    group.produce()
    group.wait_consumed()

    group.remove(new_one)
    new_one.leave()
    wait_until(lambda: listed_type(group) == "classic", 20, "the classic group")
    group.wait_settled(30)
    group.produce()
    group.wait_consumed()
    group.check_commits()
    assert old_two.assigned == list(range(PARTITIONS))


def test_a_group_survives_a_crash_of_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", QUICK, port=lasting_port()) as broker, making_groups(broker) as make:
        group = make("confluent-kafka", "uniform", protocol="consumer")
        group.produce()
        one, two = group.start(), group.start()
        group.wait_settled()
        group.wait_consumed()
        before = one.assigned, two.assigned
        broker.restart(kill=True)
        group.produce()
        group.wait_consumed()
        group.check_commits()
        assert (one.assigned, two.assigned) == before
        assert state(group) == "Stable"


def test_subscription_by_pattern(broker: BrokerProcess) -> None:
    from confluent_kafka import Consumer

    with broker.client() as wire:
        for name in ("pattern-a", "pattern-b", "other"):
            wire.create_topic(name, partitions=2)
            assert wire.produce(name, batch([b"x"]), partition=1)["ErrorCode"] == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "by-pattern",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe(["^pattern-[ab]"])
        seen: set[str] = set()

        def poll() -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                seen.add(str(message.topic()))
            return seen == {"pattern-a", "pattern-b"}

        wait_until(poll, 15, "records of both topics")
    finally:
        consumer.close()


def test_a_groups_own_settings_count_at_once_and_after_a_restart(tmp_path: Path) -> None:
    def beat(broker: BrokerProcess, epoch: int) -> int:
        request = {
            "GroupId": "own", "MemberId": "m", "MemberEpoch": epoch, "RebalanceTimeoutMs": 1000 if epoch == 0 else -1,
            "SubscribedTopicNames": ["t"], "TopicPartitions": [] if epoch == 0 else None,
        }  # fmt: skip
        answer = consumer_scripts.Live(broker.host, broker.port, "").call("ConsumerGroupHeartbeat", 1, request)
        assert answer["ErrorCode"] == 0, answer
        return int(answer["HeartbeatIntervalMs"])

    with BrokerProcess(tmp_path / "data", {"offsets.topic.num.partitions": 1}) as broker:
        assert beat(broker, 0) == 5000
        change = {"Name": "consumer.heartbeat.interval.ms", "ConfigOperation": 0, "Value": "7000"}
        resource = {"ResourceType": 32, "ResourceName": "own", "Configs": [change]}
        with broker.client() as wire:
            answer = wire.call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
        assert answer["Responses"][0]["ErrorCode"] == 0
        assert beat(broker, 2) == 7000
        broker.restart()
        assert beat(broker, 2) == 7000


@pytest.mark.parametrize("name", ["join_and_leave", "static_migration", "subscriptions", "unknown", "validation"])
def test_recorded_script(tmp_path: Path, name: str) -> None:
    """The answers are those of Kafka's own defaults."""
    with BrokerProcess(tmp_path / "data", {"offsets.topic.num.partitions": 3}) as broker:
        _, steps = consumer_scripts.read(consumer_scripts.FOLDER / f"{name}.txt")
        for step, answer in consumer_scripts.run(steps, consumer_scripts.Live(broker.host, broker.port, "s.")):
            assert answer == step.answer, step.line


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_java_consumer(broker: BrokerProcess, assignor: str) -> None:
    """Kafka's own consumer of 4.3.1 with the new protocol."""
    java.need_java("4.3.1")
    topic = f"java-{assignor}"
    with broker.client() as wire:
        wire.create_topic(topic, partitions=3)
        for partition in range(3):
            assert wire.produce(topic, batch([b"x"] * 10), partition=partition)["ErrorCode"] == 0
    done = java.run_tool(
        "4.3.1", "ConsoleConsumer", "--bootstrap-server", broker.address, "--topic", topic, "--from-beginning",
        "--max-messages", "30", "--timeout-ms", "30000", "--command-property", "group.protocol=consumer",
        "--command-property", f"group.id={topic}", "--command-property", f"group.remote.assignor={assignor}",
    )  # fmt: skip
    assert "Processed a total of 30 messages" in done.stdout
    with broker.client() as wire:
        request = {"GroupIds": [topic], "IncludeAuthorizedOperations": False}
        described = wire.call("ConsumerGroupDescribe", 1, request)["Groups"][0]
    assert (described["ErrorCode"], described["GroupState"]) == (0, "Empty")
