"""Kinds of complaints are compared: lines that say the same of other partitions, brokers and offsets are one kind."""

from __future__ import annotations

from tests.mixed.kafka_node import kinds

LINES = """
[2026-11-30 20:20:52,400] WARN [UnifiedLog partition=a-b-0, dir=/tmp/data] Non-monotonic update of high watermark from \
(offset=40, segment=[0:1116]) to (offset=37, segment=[-1:-1]) (kafka.log.UnifiedLog)
[2026-11-30 20:20:53,001] WARN [UnifiedLog partition=c-1, dir=/data] Non-monotonic update of high watermark from \
(offset=4, segment=[0:11]) to (offset=3, segment=[-1:-1]) (kafka.log.UnifiedLog)
[2026-11-30 20:20:53,002] INFO nothing (kafka.log.UnifiedLog)
[2026-11-30 20:20:53,003] ERROR [ReplicaFetcher replicaId=1, leaderId=4] Error for partition t-1 at offset 5 (kafka.X)
java.io.IOException: of the line before
[2026-11-30 20:20:53,004] WARN Error in response for fetch request (type=FetchRequest, fetchData={t-1=PartitionData(\
topicId=AAAAAAAAAAAAAAAAAAAAAA, fetchOffset=1)}, rackId=) (kafka.X)
[2026-11-30 20:20:53,005] WARN Failed move of /tmp/pytest-of-a/pytest-0/b1/data/t-1/00003.log to /a/x-2.tmp (kafka.X)
[2026-11-30 20:20:53,006] ERROR [ReplicaFetcher replicaId=1] Error getting offset for partition t-1 (kafka.X)
java.io.IOException: Connection to 127.0.0.1:1 (id: 3 rack: null) failed.
[2026-11-30 20:20:53,007] WARN of a line at once (kafka.X)
[2026-11-30 20:20:53,008] WARN after the other (kafka.X)
"""


def test_names_numbers_and_what_is_in_brackets_make_no_other_kind() -> None:
    assert kinds(LINES) == {
        "WARN kafka.log.UnifiedLog Non-monotonic update of high watermark from to",
        "ERROR kafka.X Error for partition P at offset N",
        "WARN kafka.X Error in response for fetch request",
        "WARN kafka.X Failed move of N to N",
        "WARN kafka.X of a line at once",
        "WARN kafka.X after the other",
    }
