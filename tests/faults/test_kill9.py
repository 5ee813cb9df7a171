"""kill -9 while producers write: after the restart nothing acknowledged is lost, nothing is there twice.

`pytest tests/faults/test_kill9.py -k acknowledged --kills 5000` kills as often as one likes.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.writers import Checker, Writer, check, new_producer_id, read_log, wrote
from tests.support.broker import BrokerProcess, broker_environment, wait_until
from tests.support.records import batch
from tests.support.wire import Closed, WireClient

pytestmark = pytest.mark.timeout(1200)

KILLS, LONG_KILLS = 8, 200
KILLS_OF_TOPIC = 10  # then its records have been in memory long enough
# Recovery points move on while the test runs, so that recoveries begin at all kinds of places.
FLUSHING = {"log.flush.scheduler.interval.ms": 500, "log.flush.offset.checkpoint.interval.ms": 1000}
SEGMENTS: dict[str, Any] = {"segment_bytes": "65536", "index_interval_bytes": "1024", "segment_index_bytes": "65536"}


def _writers(topic: str) -> list[Writer]:
    """Of every kind, one pair in the same partition."""
    return [
        Writer("plain-1", topic, 0, acks=1, idempotent=False),
        Writer("plain-all", topic, 0, acks=-1, idempotent=False),
        Writer("idempotent-1", topic, 1, acks=1, idempotent=True),
        Writer("idempotent-all", topic, 1, acks=-1, idempotent=True),
        Writer("large", topic, 2, acks=-1, idempotent=True, size=1500),
    ]


def test_nothing_acknowledged_is_lost(tmp_path: Path, long_run: bool, request: pytest.FixtureRequest) -> None:
    random.seed(seed := time.time_ns())
    print(f"seed {seed}")
    left = request.config.getoption("--kills") or (LONG_KILLS if long_run else KILLS)
    settings = FLUSHING | {"log.segment.delete.delay.ms": 1000}
    with BrokerProcess(tmp_path / "data", overrides=settings) as broker:
        while left > 0:
            count = min(left, KILLS_OF_TOPIC)
            _kill_while_written(broker, f"busy-{left}", count)
            left -= count


def _kill_while_written(broker: BrokerProcess, topic: str, count: int) -> None:
    """So many kills while a topic is written to; then all its records, and all files there are, are looked at."""
    with broker.client() as client:
        client.create_topic(topic, 3, **SEGMENTS)
    writers, checker = _writers(topic), Checker()
    for _ in range(count):
        threads = [writer.thread(broker) for writer in writers]
        goal = max(len(writer.acknowledged) for writer in writers) + 5
        wait_until(lambda goal=goal: wrote(writers, goal), 30, "writing")
        time.sleep(random.random() * 0.7)  # at a moment of no one's choice
        broker.restart(kill=True)
        for thread in threads:
            thread.join(30)
        assert wrote(writers, goal)
        with broker.client(timeout=60) as client:
            checker.check(client, writers)
    with broker.client(timeout=60) as client:
        assert check(client, writers) > 100 * count
    broker.stop()
    _verify(broker.data_dir)
    broker.start()
    with broker.client(timeout=60) as client:
        answer = client.call("DeleteTopics", 4, {"TopicNames": [topic], "TimeoutMs": 30000})
        assert answer["Responses"][0]["ErrorCode"] == 0


def _verify(directory: Path) -> None:
    """Nothing is wrong with any file of a broker that was stopped."""
    command = [sys.executable, "-m", "pybroker", "log", "verify", str(directory)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=directory.parent, env=broker_environment(), timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_producer_ids_are_given_once(tmp_path: Path) -> None:
    """A block of ids that was taken before a kill is not given again."""
    given: list[int] = []
    with BrokerProcess(tmp_path / "data") as broker:
        for _ in range(3):
            with broker.client() as client:
                for _ in range(5):
                    given.append(new_producer_id(client))
            broker.restart(kill=True)
    assert len(set(given)) == len(given)


def test_a_stopped_broker_goes_on(tmp_path: Path) -> None:
    """SIGSTOP for longer than clients wait, then SIGCONT: who waited gets the answer, nothing is lost."""
    with BrokerProcess(tmp_path / "data") as broker:
        with broker.client() as client:
            client.create_topic("held", 3)
        writers = _writers("held")
        ended = threading.Event()
        threads = [writer.thread(broker, stop=ended.is_set) for writer in writers]
        wait_until(lambda: wrote(writers, 5), 30, "writing")
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)
        time.sleep(1)
        goal = max(len(writer.acknowledged) for writer in writers) + 5
        broker.process.send_signal(signal.SIGCONT)
        wait_until(lambda: wrote(writers, goal), 30, "writing")
        ended.set()
        for thread in threads:
            thread.join(30)
        with broker.client() as client:
            assert wrote(writers, goal)
            assert check(client, writers) == sum(len(writer.acknowledged) * 10 for writer in writers)


# Torn tails: what a power loss or a dying disk leaves behind, on top of a kill.
Damage = Callable[[Path, int, int], None]  # segment, where its last batch starts, its end


def _append(content: Callable[[bytes], bytes]) -> Damage:
    def damage(segment: Path, last: int, end: int) -> None:
        with segment.open("ab") as file:
            file.write(content(segment.read_bytes()[last:end]))

    return damage


def _cut_to(position: Callable[[int, int], int]) -> Damage:
    def damage(segment: Path, last: int, end: int) -> None:
        with segment.open("r+b") as file:
            file.truncate(position(last, end))

    return damage


def _flip(at: Callable[[int, int], int]) -> Damage:
    def damage(segment: Path, last: int, end: int) -> None:
        data = bytearray(segment.read_bytes())
        data[at(last, end)] ^= 0x40
        segment.write_bytes(data)

    return damage


def _of_indexes(change: Callable[[Path], object]) -> Damage:
    def damage(segment: Path, last: int, end: int) -> None:
        for suffix in (".index", ".timeindex"):
            change(segment.with_suffix(suffix))

    return damage


# name → (damage, whether the last batch survives)
DAMAGES: dict[str, tuple[Damage, bool]] = {
    "garbage": (_append(lambda last: random.Random(1).randbytes(5000)), True),
    "zeros": (_append(lambda last: bytes(4096)), True),
    "half a batch": (_append(lambda last: last[: len(last) // 2]), True),
    "half a header": (_append(lambda last: last[:30]), True),
    "the last batch once more": (_append(lambda last: last), True),
    "a huge length": (_append(lambda last: last[:8] + b"\x7f\xff\xff\xff" + last[12:]), True),
    "a negative length": (_append(lambda last: last[:8] + b"\xff\xff\xff\xff" + last[12:]), True),
    "cut in the last batch": (_cut_to(lambda last, end: (last + end) // 2), False),
    "cut in the last header": (_cut_to(lambda last, end: last + 20), False),
    "cut by a byte": (_cut_to(lambda last, end: end - 1), False),
    "cut before the last batch": (_cut_to(lambda last, end: last), False),
    "a flipped bit in the records": (_flip(lambda last, end: end - 3), False),
    "a flipped bit in the CRC": (_flip(lambda last, end: last + 18), False),
    "a flipped bit in the length": (_flip(lambda last, end: last + 11), False),
    "indexes missing": (_of_indexes(Path.unlink), True),
    "indexes of garbage": (_of_indexes(lambda file: file.write_bytes(b"\xff" * 999)), True),
    "indexes emptied": (_of_indexes(lambda file: file.write_bytes(b"")), True),
}


def test_torn_tails_are_cut(tmp_path: Path) -> None:
    """One topic for each damage, all in one restart: recovered to the last whole batch, and appended to from there."""
    with BrokerProcess(tmp_path / "data") as broker:
        whole: dict[str, list[bytes]] = {}
        topics = {name: f"torn-{number}" for number, name in enumerate(DAMAGES)}
        with broker.client() as client:
            for name, topic in topics.items():
                client.create_topic(topic, **SEGMENTS)
                whole[name] = [b"%d" % number * 50 for number in range(500)]
                for start in range(0, 500, 5):
                    assert client.produce(topic, batch(whole[name][start : start + 5]))["ErrorCode"] == 0
        broker.kill()
        for name, topic in topics.items():
            segment = max((tmp_path / "data" / f"{topic}-0").glob("*.log"))
            last, end = _last_batch(segment)
            DAMAGES[name][0](segment, last, end)
        broker.start()
        with broker.client() as client:
            for name, topic in topics.items():
                kept = whole[name] if DAMAGES[name][1] else whole[name][:-5]
                assert list(read_log(client, topic).values.values()) == kept, name
                again = client.produce(topic, batch([b"behind"]))
                assert (again["ErrorCode"], again["BaseOffset"]) == (0, len(kept)), name
                assert list(read_log(client, topic).values.values()) == [*kept, b"behind"], name
                assert client.end_offset(topic, timestamp=0) == 0, name


def _last_batch(segment: Path) -> tuple[int, int]:
    """Where the last batch of a segment starts and ends."""
    data = segment.read_bytes()
    at = last = 0
    while at + 12 <= len(data) and (length := int.from_bytes(data[at + 8 : at + 12], "big")) > 0:
        last, at = at, at + 12 + length
    return last, at


# Metadata: what was answered is there after a kill, what was not is there whole or not at all.
def test_metadata_survives_kills(tmp_path: Path, long_run: bool) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        history = _History()
        for round_number in range(20 if long_run else 4):
            thread = threading.Thread(target=history.go_on, args=(broker, round_number), daemon=True)
            done = len(history.done)
            thread.start()
            wait_until(lambda done=done: history.failure or len(history.done) > done + 6, 30, "changes")
            time.sleep(random.random() * 0.2)
            broker.restart(kill=True)
            thread.join(30)
            assert history.failure is None, history.failure
            with broker.client() as client:
                history.check(client)


class _History:
    """Creates, configures, extends and deletes topics, and knows what was acknowledged of that."""

    def __init__(self) -> None:
        self.topics: dict[str, tuple[int, str]] = {}  # name → partitions, retention.ms
        self.deleted: set[str] = set()
        self.unsure: set[str] = set()  # what was being changed when the broker died
        self.done: list[str] = []
        self.failure: BaseException | None = None

    def go_on(self, broker: BrokerProcess, round_number: int) -> None:
        try:
            with broker.client() as client:
                for number in range(10000):
                    self._one_topic(client, f"t-{round_number}-{number}")
        except (Closed, ConnectionError):
            pass  # killed, as the test wants
        except BaseException as error:
            self.failure = error

    def _one_topic(self, client: WireClient, name: str) -> None:
        number = int(name.rpartition("-")[2])
        self.unsure.add(name)
        client.create_topic(name, 2, retention_ms="1111111")
        self._settle(name, 2, "1111111")
        if number % 3 == 0:
            self.unsure.add(name)
            config = {"Name": "retention.ms", "ConfigOperation": 0, "Value": "2222222"}
            resource = {"ResourceType": 2, "ResourceName": name, "Configs": [config]}
            answer = client.call("IncrementalAlterConfigs", 1, {"Resources": [resource]})
            assert answer["Responses"][0]["ErrorCode"] == 0, answer
            self._settle(name, 2, "2222222")
        elif number % 3 == 1:
            self.unsure.add(name)
            wanted = {"Name": name, "Count": 4, "Assignments": None}
            answer = client.call("CreatePartitions", 2, {"Topics": [wanted], "TimeoutMs": 30000})
            assert answer["Results"][0]["ErrorCode"] == 0, answer
            self._settle(name, 4, "1111111")
        else:
            self.unsure.add(name)
            answer = client.call("DeleteTopics", 5, {"TopicNames": [name], "TimeoutMs": 30000})
            assert answer["Responses"][0]["ErrorCode"] == 0, answer
            self.unsure.discard(name)
            del self.topics[name]
            self.deleted.add(name)
            self.done.append(f"deleted {name}")

    def _settle(self, name: str, partitions: int, retention: str) -> None:
        self.topics[name] = partitions, retention
        self.unsure.discard(name)
        self.done.append(name)

    def check(self, client: WireClient) -> None:
        listed = {topic["Name"]: topic for topic in client.call("Metadata", 9, {"Topics": None})["Topics"]}
        unexpected = set(listed) - set(self.topics) - self.unsure
        assert not unexpected, f"deleted topics are back: {unexpected}"
        for name, (partitions, retention) in self.topics.items():
            if name in self.unsure:
                continue
            assert len(listed[name]["Partitions"]) == partitions, name
            keys = {"ResourceType": 2, "ResourceName": name, "ConfigurationKeys": ["retention.ms"]}
            configs = client.call("DescribeConfigs", 4, {"Resources": [keys]})["Results"][0]["Configs"]
            assert configs[0]["Value"] == retention, name
        for name in list(self.unsure):  # whole or not at all: what is listed can be written to
            if name in listed:
                assert listed[name]["ErrorCode"] == 0
                for partition in listed[name]["Partitions"]:
                    assert partition["ErrorCode"] == 0
                    answer = client.produce(name, batch([b"x"]), partition=partition["PartitionIndex"])
                    assert answer["ErrorCode"] == 0, (name, answer)
            self.topics.pop(name, None)


def test_a_directory_without_its_metadata_starts(tmp_path: Path) -> None:
    """The write-ahead file of the metadata store torn by a power loss costs at most its last changes, not the start."""
    with BrokerProcess(tmp_path / "data") as broker:
        with broker.client() as client:
            client.create_topic("kept")
            client.produce("kept", batch([b"value"]))
        broker.restart()  # a clean stop moves the write-ahead file into the store
        broker.kill()
        for name in (tmp_path / "data").glob("*-wal"):
            name.write_bytes(name.read_bytes() + random.Random(2).randbytes(1000))
        broker.start()
        with broker.client() as client:
            assert list(read_log(client, "kept").values.values()) == [b"value"]


def test_data_moves_with_a_copy(tmp_path: Path) -> None:
    """A copy of a killed broker's directory, as a backup or snapshot takes it, is a broker of its own."""
    with BrokerProcess(tmp_path / "data") as broker:
        with broker.client() as client:
            client.create_topic("copied")
            client.produce("copied", batch([b"value"]))
        broker.kill()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        broker.start()
        with BrokerProcess(tmp_path / "copy") as copy, copy.client() as client:
            assert list(read_log(client, "copied").values.values()) == [b"value"]


def test_starts_that_are_ended_half_way(tmp_path: Path, long_run: bool) -> None:
    """Killed or told to stop at any moment of a start, after a crash or a clean stop: the next start finds all."""
    with BrokerProcess(tmp_path / "data") as broker:
        with broker.client() as client:
            for number in range(10):
                client.create_topic(f"t-{number}", 2, **SEGMENTS)
                for partition in range(2):
                    for _ in range(5):
                        client.produce(f"t-{number}", batch([b"value"] * 100), partition=partition)
        for number in range(60 if long_run else 6):
            how = signal.SIGKILL if number % 2 else signal.SIGTERM
            broker.kill() if number % 3 else broker.stop()
            _start_and_end(broker, random.random() * broker.start_seconds, how)
            broker.start()
        with broker.client() as client:
            listed = client.call("Metadata", 9, {"Topics": None})["Topics"]
            assert len(listed) == 10
            for topic in listed:
                for partition in range(2):
                    assert client.end_offset(topic["Name"], partition) == 500


def _start_and_end(broker: BrokerProcess, seconds: float, how: signal.Signals) -> None:
    with broker.output.open("ab") as output:
        process = subprocess.Popen(
            broker.command(), stdout=output, stderr=output, cwd=broker.data_dir.parent, env=broker_environment()
        )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(how)
    assert process.wait(30) in (0, -how)


def test_committed_offsets_survive_kills(tmp_path: Path, long_run: bool) -> None:
    """What was committed is fetched after the restart; one commit more may be there, whose answer was lost."""
    with BrokerProcess(tmp_path / "data") as broker:
        with broker.client() as client:
            client.create_topic("read")
        acknowledged = 0
        for _ in range(20 if long_run else 3):
            count = random.randrange(5, 50)
            with broker.client(timeout=60) as client:
                for _ in range(count):
                    _commit(client, acknowledged + 1)
                    acknowledged += 1
            broker.restart(kill=True)
            with broker.client(timeout=60) as client:
                assert wait_until(lambda client=client: _committed(client), 30, "the group's offsets") == acknowledged


LOADING = (14, 15, 16)  # coordinator load in progress, not available, not here: ask again


def _commit(client: WireClient, offset: int) -> None:
    client.call("FindCoordinator", 1, {"Key": "g", "KeyType": 0})  # makes the topic of groups, as a client would
    partition = {"PartitionIndex": 0, "CommittedOffset": offset, "CommittedMetadata": "x"}
    topics = [{"Name": "read", "Partitions": [partition]}]
    request = {"GroupId": "g", "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": topics}

    def answer() -> bool:
        code = client.call("OffsetCommit", 7, request)["Topics"][0]["Partitions"][0]["ErrorCode"]
        assert code in (0, *LOADING), code
        return code == 0

    wait_until(answer, 30, "a commit")


def _committed(client: WireClient) -> int | None:
    """None while the group's partition is being loaded."""
    client.call("FindCoordinator", 1, {"Key": "g", "KeyType": 0})
    topics = [{"Name": "read", "PartitionIndexes": [0]}]
    answer = client.call("OffsetFetch", 5, {"GroupId": "g", "Topics": topics})
    if answer["ErrorCode"] in LOADING:
        return None
    assert answer["ErrorCode"] == 0, answer
    return int(answer["Topics"][0]["Partitions"][0]["CommittedOffset"])
