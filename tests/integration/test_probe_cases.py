"""Odd and malformed requests get Apache Kafka's own answer: 3.9.2's as recorded, unless a table below says otherwise.

All cases run in order, once, against a fresh broker; then each is one test. validate.records=true is the mode in which
the insides of every batch are looked at, as in Kafka; the produce cases run a second time with the default.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import data
from tests.support.broker import BrokerProcess
from tests.support.probe import SETTINGS, Case, Probe, Result, all_cases, mask, run_all

EXPECTED = data.probe_answers("3.9.2")
EXPECTED_NEWER = data.probe_answers("4.3.1")
CASES = all_cases()

# APIs that later work brings; their cases are not sent. An API must leave this table once it is advertised.
NOT_SERVED = {
    **dict.fromkeys(("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"), "transactions"),
    **dict.fromkeys(("DescribeTransactions",), "transactions"),
    **dict.fromkeys(("CreateDelegationToken",), "security"),
    **dict.fromkeys(("DescribeDelegationToken", "AlterUserScramCredentials"), "security"),
    **dict.fromkeys(("DescribeUserScramCredentials",), "security"),
    **dict.fromkeys(("DescribeClientQuotas", "AlterClientQuotas"), "quotas"),
    **dict.fromkeys(("UpdateFeatures", "UnregisterBroker", "DescribeQuorum", "GetTelemetrySubscriptions"), "later"),
}
# Cases of served APIs that need what is not there yet.
NOT_YET = {
    "array length -2": "its size counts the internal topics, which are not there yet",
    "transactional batch without AddPartitionsToTxn": "no transaction coordinator yet",
    "transaction timeout 0": "no transactional ids yet",
    "transaction timeout 900001": "no transactional ids yet",
    "transaction timeout -1": "no transactional ids yet",
    "twice: epoch goes up": "no transactional ids yet",
    "with a wrong producer id": "no transactional ids yet",
    "DescribeProducers": "most of its producers are transactional",
    "empty list v0 = all topics": "counts the internal topics, which are not there yet",
    "null v1 = all": "counts the internal topics, which are not there yet",
}
# Only the newer release serves these: its answer counts.
NEWER = {"DescribeTopicPartitions on a ZooKeeper broker", "ConsumerGroupHeartbeat on a ZooKeeper broker"}

Answer = tuple[Any, str]
REFUSED = {"LogAppendTimeMs": -1, "LogStartOffset": -1, "RecordErrors": [], "ErrorMessage": None}


def produced(**fields: Any) -> list[dict[str, Any]]:
    return [{"ErrorCode": 0, "BaseOffset": -1} | REFUSED | fields]


# Where we answer otherwise on purpose; each is told in docs/differences.md.
NEW_ID = {"ThrottleTimeMs": 0, "ErrorCode": 0, "ProducerId": 0, "ProducerEpoch": 0}
DIFFERENT: dict[str, Answer] = {
    # Kafka never answers, and nothing more on that connection
    "records null": (produced(ErrorCode=87), "open"),
    # Kafka answers 14 until it has its first block of producer ids
    "idempotent": (NEW_ID, "open"),
    "idempotent, producer id 5 epoch 0": (NEW_ID, "open"),
    # 3.9.2 answers null records, which librdkafka takes for a broken answer; this is 4.3.1's
    "isolation level 7": (
        {
            "ErrorCode": -1,
            "SessionId": 0,
            "parts": [
                {
                    "ErrorCode": -1, "HighWatermark": -1, "LastStableOffset": -1, "LogStartOffset": -1, "bytes": 0,
                    "batches": [],
                }
            ],
        },
        "open",
    ),
}

# Batches whose header is right and whose insides are not: taken unless validate.records=true.
DAMAGED_INSIDE = {
    "record length wrong",
    "header key null",
    "compression 1 (gzip) but plain data",
    "compression 4 (zstd), plain data",
    "compression 2 (snappy), plain data",
    "compression 3 (lz4), plain data",
    "gzip, count wrong",
    "gzip, empty stream, count 2",
}


def served(case: Case) -> bool:
    return case.api not in NOT_SERVED


def run(settings: dict[str, Any], only: Any) -> Iterator[list[Result | None]]:
    with (
        tempfile.TemporaryDirectory(prefix="pybroker-probe-") as directory,
        BrokerProcess(Path(directory) / "data", SETTINGS | settings) as broker,
    ):
        yield run_all(Probe(broker.host, broker.port), only=only)


@pytest.fixture(scope="module")
def strict() -> Iterator[list[Result | None]]:
    """Results of every served case with validate.records=true."""
    yield from run({"validate.records": "true"}, served)


@pytest.fixture(scope="module")
def default() -> Iterator[list[Result | None]]:
    """Results of the produce cases with default settings."""
    yield from run({}, lambda case: case.api == "Produce")


def numbered() -> list[Any]:
    return [pytest.param(number, id=f"{number:03}-{case.name[:60]}") for number, case in enumerate(CASES)]


def comparable(answer: Any) -> Any:
    """Masked, and in an order of its own where Kafka's comes from a hash map."""
    answer = mask(answer)
    if isinstance(answer, list) and all(isinstance(each, dict | list) for each in answer):
        return sorted(answer, key=repr)
    if isinstance(answer, dict):
        return {key: comparable(each) if isinstance(each, list) else each for key, each in answer.items()}
    return answer


def in_order(answer: Any) -> Any:
    """Comparable all the way down, for the one API whose partitions Kafka answers in the order of a hash map."""
    if isinstance(answer, dict):
        return {key: in_order(each) for key, each in answer.items()}
    return sorted(map(in_order, answer), key=repr) if isinstance(answer, list) else answer


def test_the_table_is_the_recorded_one() -> None:
    assert [case.name for case in CASES] == [row["case"] for row in EXPECTED]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", numbered())
def test_case(strict: list[Result | None], number: int) -> None:
    case, result = CASES[number], strict[number]
    if not served(case):
        pytest.skip(f"{case.api} comes with {NOT_SERVED[case.api or '']}")
    if case.name in NOT_YET:
        pytest.skip(NOT_YET[case.name])
    row = (EXPECTED_NEWER if case.name in NEWER else EXPECTED)[number]
    answer, connection = DIFFERENT.get(case.name, (row["answer"], row["connection"]))
    assert result is not None
    if str(row["answer"]).startswith("answer ") and case.name in NEWER:  # its size depends on the topics there are
        assert str(result.answer).startswith("answer ")
    elif case.api == "AlterPartitionReassignments":
        assert in_order(result.answer) == in_order(answer)
    else:
        assert comparable(result.answer) == comparable(answer)
    assert result.connection == connection


def without_offsets(answer: Any) -> Any:
    answer = comparable(answer)
    if isinstance(answer, list):
        return [
            {key: value for key, value in each.items() if key != "BaseOffset"} if isinstance(each, dict) else each
            for each in answer
        ]
    return answer


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [each for each in numbered() if CASES[each.values[0]].api == "Produce"])
def test_produce_case_by_default(default: list[Result | None], number: int) -> None:
    """The same without looking inside: eight damaged batches are taken, so offsets behind them differ."""
    case, result = CASES[number], default[number]
    if case.name in NOT_YET:
        pytest.skip(NOT_YET[case.name])
    answer, connection = DIFFERENT.get(case.name, (EXPECTED[number]["answer"], EXPECTED[number]["connection"]))
    if case.name in DAMAGED_INSIDE:
        answer = produced(LogStartOffset=0)
    assert result is not None
    assert without_offsets(result.answer) == without_offsets(answer)
    assert result.connection == connection


def test_what_is_not_served_is_not_advertised(tmp_path: Path) -> None:
    from tests.support.schema import api_keys

    with BrokerProcess(tmp_path / "data") as broker, broker.client() as client:
        advertised = client.api_versions()
    assert [api for api in NOT_SERVED if api_keys()[api] in advertised] == []
