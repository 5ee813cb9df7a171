"""ElectLeaders (API key 43, KIP-460): make the preferred replica leader, or any replica where none in sync is left.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | preferred replicas only, no error for the whole answer
1-2      | 1 election type (0 preferred, 1 unclean), an error for the whole answer; 2 flexible

Only the controller elects. Null means all partitions, and then those that need no election are not told. What can't be
elected comes first in the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.administration import require_controller
from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.controller.state import Election
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from pybroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

_ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}


def handle(context: RequestContext, request: ElectLeadersRequest) -> Awaitable[ElectLeadersResponse]:
    """See the module's text."""
    election = _ELECTIONS.get(request.election_type)
    if election is None:
        raise KafkaError(Errors.UNKNOWN_SERVER_ERROR)
    if not context.authorize("ALTER", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)
    require_controller(context)
    return _elect(context, request, election)


async def _elect(context: RequestContext, request: ElectLeadersRequest, election: Election) -> ElectLeadersResponse:
    wanted = None
    if request.topic_partitions is not None:
        wanted = [TopicPartition(each.topic, index) for each in request.topic_partitions for index in each.partitions]
    answers = await context.services.controller.elect_leaders(election, wanted)
    topics: dict[str, ReplicaElectionResult] = {}
    for at, answer in sorted(answers.items(), key=lambda item: item[1].error == Errors.ELECTION_NOT_NEEDED):
        if wanted is None and answer.error == Errors.ELECTION_NOT_NEEDED:
            continue
        topic = topics.setdefault(at.topic, ReplicaElectionResult(topic=at.topic, partition_result=[]))
        topic.partition_result.append(
            PartitionResult(partition_id=at.partition, error_code=answer.error, error_message=answer.message)
        )
    return ElectLeadersResponse(replica_election_results=list(topics.values()))


def error_response(request: ElectLeadersRequest, error: KafkaError, version: int) -> ElectLeadersResponse:
    """The error for the whole and, unless it is one of rights, at every partition of the request."""
    results = [
        ReplicaElectionResult(
            topic=each.topic,
            partition_result=[
                PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
                for index in each.partitions
            ],
        )
        for each in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=error.code, replica_election_results=results)
