"""InitProducerId (API key 22): a producer id for idempotent writes (KIP-98).

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | 1 throttles after answering; 2 flexible
3-5      | 3 a producer's own id and epoch (KIP-360); 4 PRODUCER_FENCED; 5 new error codes (KIP-890)

Version 6 (two-phase commit, KIP-939) is served by no release. Without a transactional id a new producer id with epoch
0 is given, whatever id the producer says it had. There is no transaction coordinator yet: a transactional id gets
COORDINATOR_NOT_AVAILABLE, after the checks that need none.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pybroker.broker.authorized_operations import CLUSTER_NAME
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

NO_PRODUCER_ID = NO_EPOCH = -1


def handle(context: RequestContext, request: InitProducerIdRequest) -> Awaitable[InitProducerIdResponse]:
    """See the module's text."""
    transactional_id = request.transactional_id
    if transactional_id is not None:
        if not context.authorize("WRITE", "TRANSACTIONAL_ID", transactional_id):
            raise KafkaError(Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif not context.authorize("IDEMPOTENT_WRITE", "CLUSTER", CLUSTER_NAME):
        raise KafkaError(Errors.CLUSTER_AUTHORIZATION_FAILED)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise KafkaError(Errors.INVALID_REQUEST)
    if transactional_id is None:
        return _next(context)
    if not transactional_id:
        raise KafkaError(Errors.INVALID_REQUEST)
    if not 0 < request.transaction_timeout_ms <= context.services.config.int("transaction.max.timeout.ms"):
        raise KafkaError(Errors.INVALID_TRANSACTION_TIMEOUT)
    raise KafkaError(Errors.COORDINATOR_NOT_AVAILABLE)


async def _next(context: RequestContext) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=await context.services.producer_ids.next_producer_id(), producer_epoch=0)


def error_response(request: InitProducerIdRequest, error: KafkaError, version: int) -> InitProducerIdResponse:
    """The error, with no producer id and no epoch."""
    return InitProducerIdResponse(error_code=error.code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
