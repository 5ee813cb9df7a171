"""What scripts of the consumer protocol run against without a broker: a GroupShard whose clock is moved by hand."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from pybroker.coordinator.classic_join import Join
from pybroker.coordinator.consumer.catalog import Topic
from pybroker.coordinator.consumer.heartbeat import Beat
from pybroker.coordinator.consumer.settings import ConsumerRules, ConsumerSettings
from pybroker.coordinator.consumer.shard import ConsumerGroups
from pybroker.coordinator.effects import Reply
from pybroker.coordinator.group import Group
from pybroker.coordinator.offsets import CommittedOffset
from pybroker.coordinator.settings import GroupSettings
from pybroker.coordinator.shard import Committer, GroupShard
from pybroker.protocol import codec
from tests.coordinator.harness import Harness
from tests.support import schema

Values = dict[str, Any]
INTERNAL = "__consumer_offsets"


class FakeCatalog:
    """Topics by name; their ids go by the number of their creation."""

    def __init__(self) -> None:
        self.version = 1
        self.topics: dict[str, Topic] = {}
        self._count = 0

    def create(self, name: str, partitions: int) -> bytes:
        self._count += 1
        topic_id = self._count.to_bytes(16, "big")
        self.topics[name] = Topic(topic_id, partitions)
        self.version += 1
        return topic_id

    def grow(self, name: str, partitions: int) -> None:
        self.topics[name] = self.topics[name]._replace(partitions=partitions)
        self.version += 1

    def delete(self, name: str) -> None:
        del self.topics[name]
        self.version += 1

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, topic in self.topics.items() if topic.topic_id == topic_id), None)

    def names(self) -> Iterable[str]:
        return self.topics


class ConsumerHarness(Harness):
    """With groups of the consumer protocol."""

    def __init__(self, settings: ConsumerSettings | None = None, classic: GroupSettings | None = None) -> None:
        self.catalog = FakeCatalog()
        self.rules = ConsumerRules(settings)
        super().__init__(classic)

    def new_shard(self) -> GroupShard:
        return GroupShard(self.settings, self.clock, new_consumer=self._consumer_groups)

    def _consumer_groups(self, groups: dict[str, Group]) -> ConsumerGroups:
        return ConsumerGroups(groups, self.rules, self.catalog, self.settings, self.clock)

    @property
    def consumer(self) -> ConsumerGroups:
        found = self.shard.consumer
        assert found is not None
        return found


class Pure:
    """A Side of tests.support.consumer_scripts: requests are encoded and decoded as on the wire, then decided."""

    prefix = ""

    def __init__(self, settings: ConsumerSettings | None = None) -> None:
        self.harness = ConsumerHarness(settings)
        self.ids: dict[str, str] = {}
        self._topic_ids: dict[str, bytes] = {}
        self.harness.catalog.create(INTERNAL, 3)

    def create_topic(self, name: str, partitions: int) -> None:
        self._topic_ids[name] = self.harness.catalog.create(name, partitions)

    def add_partitions(self, name: str, count: int) -> None:
        self.harness.catalog.grow(name, count)

    def delete_topic(self, name: str) -> None:
        self.harness.catalog.delete(name)

    def wait(self, ms: int) -> None:
        self.harness.advance(ms)

    def topic_ids(self) -> dict[str, bytes]:
        return self._topic_ids

    def call(self, api: str, version: int, values: Values) -> Values:
        name = schema_name(api)
        messages = importlib.import_module(f"pybroker.protocol.messages.{name}")
        request_class, response_class = getattr(messages, f"{api}Request"), getattr(messages, f"{api}Response")
        frame = schema.encode_request(api, version, values, 1, "test")
        start = len(schema.request_header(request_class.API_KEY, version, 1, "test"))
        request = codec.decode(request_class, version, frame, start)[0]
        response = getattr(self, "_" + name)(request, version)
        body = codec.encode_bytes(response, version)
        header = b"\0\0\0\1" + (b"\0" if version in response_class.FLEXIBLE else b"")
        answer: Values = schema.decode_response(api, version, header + body)[1]
        return answer

    def _answer(self, act: Any, version: int) -> Any:
        answers: list[Any] = []
        reply = Reply(version, answers.append)
        self.harness.decide(lambda effects: act(reply, effects))
        assert len(answers) == 1, answers
        return answers[0]

    # one method for each API, as its handler does it
    def _consumer_group_heartbeat(self, request: Any, version: int) -> Any:
        beat = Beat(request, version, "test", "/127.0.0.1", lambda topic: True)
        return self._answer(lambda reply, effects: self.harness.consumer.heartbeat(beat, reply, effects), version)

    def _consumer_group_describe(self, request: Any, version: int) -> Any:
        from pybroker.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse

        consumer = self.harness.consumer
        return ConsumerGroupDescribeResponse(groups=[consumer.describe(each) for each in request.group_ids])

    def _join_group(self, request: Any, version: int) -> Any:
        return self._answer(
            lambda reply, effects: self.harness.shard.join(Join(request, "test", "/127.0.0.1", reply), effects), version
        )

    def _sync_group(self, request: Any, version: int) -> Any:
        return self._answer(lambda reply, effects: self.harness.shard.sync(request, reply, effects), version)

    def _heartbeat(self, request: Any, version: int) -> Any:
        from pybroker.protocol.messages.heartbeat import HeartbeatResponse

        error = self.harness.decide(
            lambda effects: self.harness.shard.heartbeat(
                request.group_id, request.member_id, request.group_instance_id, request.generation_id, effects
            )
        )
        return HeartbeatResponse(error_code=error)

    def _leave_group(self, request: Any, version: int) -> Any:
        return self.harness.decide(lambda effects: self.harness.shard.leave(request, request.members, effects))

    def _list_groups(self, request: Any, version: int) -> Any:
        from pybroker.protocol.messages.list_groups import ListedGroup, ListGroupsResponse

        return ListGroupsResponse(
            groups=[
                ListedGroup(
                    group_id=each.group_id, protocol_type=each.protocol_type or "", group_state=each.state_name,
                    group_type=each.type,
                )
                for each in self.harness.shard.groups.values()
            ]
        )  # fmt: skip

    def _describe_groups(self, request: Any, version: int) -> Any:
        from pybroker.protocol.messages.describe_groups import DescribeGroupsResponse

        return DescribeGroupsResponse(groups=[self.harness.shard.describe(each, version) for each in request.groups])

    def _offset_commit(self, request: Any, version: int) -> Any:
        from pybroker.protocol.messages.offset_commit import (
            OffsetCommitResponse,
            OffsetCommitResponsePartition,
            OffsetCommitResponseTopic,
        )

        topic = request.topics[0]
        part = topic.partitions[0]
        who = Committer(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        )
        wanted = [((topic.name, part.partition_index), CommittedOffset(part.committed_offset, -1, "", 0))]
        errors = self._answer(lambda reply, effects: self.harness.shard.commit(who, wanted, reply, effects), version)
        rows = [OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=errors[0])]
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name=topic.name, partitions=rows)])

    def _offset_fetch(self, request: Any, version: int) -> Any:
        from pybroker.protocol.messages.offset_fetch import (
            OffsetFetchResponse,
            OffsetFetchResponseGroup,
            OffsetFetchResponsePartitions,
            OffsetFetchResponseTopics,
        )

        group = request.groups[0]
        error = self.harness.shard.check_fetch(group.group_id, group.member_id, group.member_epoch)
        answer = OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
        if not error:
            topic = group.topics[0]
            place = (topic.name, topic.partition_indexes[0])
            ((_, state),) = self.harness.shard.fetch(group.group_id, [place], require_stable=False)
            offset = -1 if state.offset is None else state.offset.offset
            rows = [OffsetFetchResponsePartitions(partition_index=place[1], committed_offset=offset)]
            answer.topics = [OffsetFetchResponseTopics(name=topic.name, partitions=rows)]
        return OffsetFetchResponse(groups=[answer])


def schema_name(api: str) -> str:
    """ConsumerGroupHeartbeat → consumer_group_heartbeat."""
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in api).lstrip("_")
