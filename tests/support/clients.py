"""Real clients behind one small interface: create a topic, write records in a codec, read them back.

Every client is a class with `name`, `codecs`, the `headers` it can send, `nulls` (whether it can send null values), and
three functions.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT = 30


Headers = tuple[tuple[str, bytes | None], ...]
NO_HEADERS: Headers = ()
HEADERS: Headers = (("name", b"value"), ("empty", b""))
HEADERS_AND_NULL: Headers = (*HEADERS, ("null", None))


class Sent(NamedTuple):
    """One record as a client sends and reads it."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Client(Protocol):
    name: str
    codecs: Sequence[str]
    headers: Headers
    nulls: bool

    def create(self, address: str, topic: str) -> None: ...

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None: ...

    def consume(self, address: str, topic: str, count: int) -> list[Sent]: ...


def many(count: int, headers: Headers = HEADERS, nulls: bool = True) -> list[Sent]:
    """Records with and without key, value (never without both) and headers; values that compress."""
    return [
        Sent(
            None if number % 7 == 0 else b"key-%d" % (number % 100),
            None if nulls and number % 11 == 0 and number % 7 else b"value %d " % number * 8,
            headers if number % 3 == 0 else (),
        )
        for number in range(count)
    ]


class ConfluentKafka:
    """confluent-kafka, that is librdkafka."""

    name, codecs, headers, nulls = "confluent-kafka", CODECS, HEADERS_AND_NULL, True

    def create(self, address: str, topic: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT)

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        from confluent_kafka import Producer

        failed: list[Any] = []
        producer = Producer({"bootstrap.servers": address, "compression.type": codec, "linger.ms": 5})
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                headers=list(record.headers),
                on_delivery=lambda error, message: failed.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(TIMEOUT) == 0, "not all records were delivered"
        assert not failed, failed[0]

    def consume(self, address: str, topic: str, count: int) -> list[Sent]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, 0)])
        got: list[Sent] = []
        deadline = time.monotonic() + TIMEOUT
        while len(got) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(got), 1):
                assert message.error() is None, message.error()
                got.append(Sent(message.key(), message.value(), tuple(message.headers() or ())))
        consumer.close()
        return got


class KafkaPython:
    """kafka-python, told what release its broker is."""

    def __init__(self, version: tuple[int, ...], headers: Headers, codecs: Sequence[str]) -> None:
        self.name = f"kafka-python-{'.'.join(map(str, version))}"
        self.version, self.headers, self.codecs = version, headers, codecs
        self.nulls = version >= (0, 8, 1)

    def create(self, address: str, topic: str) -> None:
        """By asking for the topic's metadata, as a client of 0.8 does, or by the admin client."""
        if self.version < (0, 10, 1):
            self._create_by_metadata(address, topic)
            return
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=address, api_version=self.version)
        admin.create_topics([NewTopic(topic, 1, 1)])
        admin.close()

    def _create_by_metadata(self, address: str, topic: str) -> None:
        producer = self._producer(address, "none")
        producer.partitions_for(topic)
        producer.close()

    def _producer(self, address: str, codec: str) -> Any:
        from kafka import KafkaProducer

        options: dict[str, Any] = {} if self.version >= (0, 11) else {"enable_idempotence": False}
        return KafkaProducer(
            bootstrap_servers=address,
            api_version=self.version,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
            **options,
        )

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        producer = self._producer(address, codec)
        sent = []
        for record in records:
            headers = {"headers": list(record.headers)} if record.headers else {}
            sent.append(producer.send(topic, record.value, record.key, partition=0, **headers))
        producer.flush(TIMEOUT)
        for each in sent:
            each.get(TIMEOUT)
        producer.close()

    def consume(self, address: str, topic: str, count: int) -> list[Sent]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=address,
            api_version=self.version,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            consumer_timeout_ms=TIMEOUT * 1000,
        )
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        got: list[Sent] = []
        for message in consumer:
            got.append(Sent(message.key, message.value, tuple(tuple(each) for each in message.headers)))
            if len(got) == count:
                break
        consumer.close()
        return got


class AioKafka:
    """aiokafka."""

    name, codecs, headers, nulls = "aiokafka", CODECS, HEADERS_AND_NULL, True

    def create(self, address: str, topic: str) -> None:
        asyncio.run(self._create(address, topic))

    async def _create(self, address: str, topic: str) -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        try:
            answer = await admin.create_topics([NewTopic(topic, 1, 1)])
            assert all(error[1] == 0 for error in answer.topic_errors), answer
        finally:
            await admin.close()

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        asyncio.run(self._produce(address, topic, codec, records))

    async def _produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=address, compression_type=None if codec == "none" else codec, linger_ms=5
        )
        await producer.start()
        try:
            sent = [
                await producer.send(topic, record.value, record.key, partition=0, headers=list(record.headers))
                for record in records
            ]
            await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT)
        finally:
            await producer.stop()

    def consume(self, address: str, topic: str, count: int) -> list[Sent]:
        return asyncio.run(self._consume(address, topic, count))

    async def _consume(self, address: str, topic: str, count: int) -> list[Sent]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(bootstrap_servers=address, group_id=None, enable_auto_commit=False)
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.start()
        consumer.seek(TopicPartition(topic, 0), 0)
        got: list[Sent] = []
        deadline = time.monotonic() + TIMEOUT
        try:
            while len(got) < count and time.monotonic() < deadline:
                for messages in (await consumer.getmany(timeout_ms=1000)).values():
                    got += [Sent(each.key, each.value, tuple(each.headers)) for each in messages]
        finally:
            await consumer.stop()
        return got


class Kcat:
    """kcat; on its command line all records of a run have the same headers, and an empty field stands for null."""

    name, codecs, headers, nulls = "kcat", CODECS, (("run", b"kcat"),), True

    def create(self, address: str, topic: str) -> None:
        """kcat has no admin commands; asking for the topic creates it."""
        subprocess.run(
            ["kcat", "-b", address, "-L", "-t", topic, "-X", "allow.auto.create.topics=true"],
            check=True,
            capture_output=True,
            timeout=TIMEOUT,
        )

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Sent]) -> None:
        lines = b"".join(b"%s:%s\n" % (record.key or b"", record.value or b"") for record in records)
        command = ["kcat", "-b", address, "-P", "-t", topic, "-p", "0", "-z", codec, "-K:", "-Z"]
        for name, value in self.headers:
            command += ["-H", f"{name}={value.decode()}"]
        subprocess.run(command, input=lines, check=True, capture_output=True, timeout=TIMEOUT)

    def consume(self, address: str, topic: str, count: int) -> list[Sent]:
        command = ["kcat", "-b", address, "-C", "-q", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count)]
        command += ["-f", "%K|%k|%S|%s|%h\\n"]
        done = subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)
        return [self._line(line) for line in done.stdout.splitlines()]

    def _line(self, line: bytes) -> Sent:
        key_size, key, size, value, headers = line.split(b"|")
        pairs = [each.partition(b"=") for each in headers.split(b",") if each]
        return Sent(
            None if key_size == b"-1" else key,
            None if size == b"-1" else value,
            tuple((name.decode(), content) for name, _, content in pairs),
        )

    @staticmethod
    def missing() -> bool:
        return shutil.which("kcat") is None


def expected(client: Client, records: Sequence[Sent]) -> list[Sent]:
    """What comes back of the records that a client sends."""
    if isinstance(client, Kcat):
        return [record._replace(headers=client.headers) for record in records]
    return list(records)


CLIENTS: tuple[Client, ...] = (
    ConfluentKafka(),
    KafkaPython((0, 8, 0), headers=NO_HEADERS, codecs=("none", "gzip", "snappy")),
    KafkaPython((4, 3), headers=HEADERS, codecs=CODECS),
    AioKafka(),
    Kcat(),
)
