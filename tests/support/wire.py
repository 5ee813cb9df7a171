"""A blocking client over one socket, for tests that look at single requests and answers.

with WireClient("127.0.0.1", 9092) as client:
    answer = client.call("Metadata", 12, {"Topics": None})          # dicts by schema names (tests/support/schema.py)
    answer = client.call_message(MetadataRequest(topics=None), 12)  # or pybroker.protocol's own messages
"""

from __future__ import annotations

import socket
import struct
from typing import Any

from tests.support import schema


class Closed(Exception):
    """The broker closed (or reset) the connection."""


class WireClient:
    """One connection; requests may be pipelined with send() and receive()."""

    def __init__(self, host: str, port: int, *, timeout: float = 10, client_id: str | None = "test") -> None:
        self.client_id, self.correlation_id = client_id, 0
        self.sock = socket.create_connection((host, port), timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    # raw bytes
    def write(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except ConnectionError as error:
            raise Closed(str(error)) from error

    def write_frame(self, frame: bytes) -> None:
        self.write(struct.pack(">i", len(frame)) + frame)

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self.sock.recv(min(size - len(data), 1 << 20))
            except ConnectionError as error:
                raise Closed(str(error)) from error
            if not part:
                raise Closed(f"closed after {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    def receive(self) -> bytes:
        """The next answer's frame, without its size."""
        return self.read(struct.unpack(">i", self.read(4))[0])

    # requests
    def send(self, api: str | int, version: int, values: dict[str, Any] | None = None) -> int:
        """Sends a request, returns its correlation id."""
        self.correlation_id += 1
        self.write_frame(schema.encode_request(api, version, values, self.correlation_id, self.client_id))
        return self.correlation_id

    def answer(self, api: str | int, version: int, correlation_id: int | None = None) -> dict[str, Any]:
        got, body = schema.decode_response(api, version, self.receive())
        if correlation_id is not None and got != correlation_id:
            raise AssertionError(f"answer to {got}, not {correlation_id}")
        return body

    def call(self, api: str | int, version: int, values: dict[str, Any] | None = None) -> dict[str, Any]:
        """Sends a request and returns its answer as a dict by the schema's names."""
        return self.answer(api, version, self.send(api, version, values))

    def call_message(self, request: Any, version: int) -> Any:
        """The same with a message of pybroker.protocol; returns its response message."""
        import importlib

        from pybroker.protocol import codec

        self.correlation_id += 1
        module = importlib.import_module(type(request).__module__)
        response = getattr(module, type(request).__name__.removesuffix("Request") + "Response")
        header = schema.request_header(type(request).API_KEY, version, self.correlation_id, self.client_id)
        self.write_frame(header + codec.encode_bytes(request, version))
        frame = self.receive()
        start = 5 if version in response.FLEXIBLE and type(request).API_KEY != 18 else 4
        return codec.decode(response, version, frame, start)[0]

    # what nearly every test needs
    def api_versions(self) -> dict[int, tuple[int, int]]:
        keys = self.call("ApiVersions", 0)["ApiKeys"]
        return {each["ApiKey"]: (each["MinVersion"], each["MaxVersion"]) for each in keys}

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Creates a topic; config names with '_' for '.'. AssertionError with the broker's message where it refuses."""
        topic = {
            "Name": name,
            "NumPartitions": partitions,
            "ReplicationFactor": 1,
            "Configs": [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()],
        }
        answer = self.call("CreateTopics", 5, {"Topics": [topic], "timeoutMs": 30000})["Topics"][0]
        assert answer["ErrorCode"] == 0, answer

    def produce(
        self, topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, version: int = 9
    ) -> dict[str, Any]:
        """Produces one records field; returns the partition's answer."""
        sent = self.send_produce(topic, records, partition=partition, acks=acks, version=version)
        answer = self.answer("Produce", version, sent)
        return answer["Responses"][0]["PartitionResponses"][0]  # type: ignore[no-any-return]

    def send_produce(
        self, topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, version: int = 9
    ) -> int:
        data = [{"Name": topic, "PartitionData": [{"Index": partition, "Records": records}]}]
        return self.send("Produce", version, {"Acks": acks, "TimeoutMs": 30000, "TopicData": data})

    def fetch(self, topic: str, offset: int, *, version: int = 11, **options: int) -> dict[str, Any]:
        """Fetches from one partition outside a session; options as for send_fetch; returns the partition's answer."""
        self.send_fetch(topic, offset, version=version, **options)
        return self.answer("Fetch", version)["Responses"][0]["Partitions"][0]  # type: ignore[no-any-return]

    def send_fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        max_bytes: int = 1 << 20,
        wait_ms: int = 500,
        version: int = 11,
    ) -> int:
        part = {
            "Partition": partition,
            "CurrentLeaderEpoch": -1,
            "FetchOffset": offset,
            "PartitionMaxBytes": max_bytes,
        }
        request = {"ReplicaId": -1, "MaxWaitMs": wait_ms, "MinBytes": 1, "MaxBytes": max_bytes}
        session = {"SessionId": 0, "SessionEpoch": -1, "Topics": [{"Topic": topic, "Partitions": [part]}]}
        return self.send("Fetch", version, request | session)

    def end_offset(self, topic: str, partition: int = 0, timestamp: int = -1) -> int:
        parts = [{"PartitionIndex": partition, "Timestamp": timestamp}]
        answer = self.call("ListOffsets", 4, {"ReplicaId": -1, "Topics": [{"Name": topic, "Partitions": parts}]})
        return int(answer["Topics"][0]["Partitions"][0]["Offset"])
