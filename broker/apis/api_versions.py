"""ApiVersions (API key 18): what this broker serves.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | error code, keys with lowest and highest version
1-2      | 1 throttle time; 2 throttling after the answer (KIP-219)
3        | the client's software name and version, features as tagged fields (KIP-511, KIP-584)
4        | features whose lowest version is 0

The answer is computed from HANDLERS, without what is off while a broker of Apache Kafka is in the cluster. A version
above ours is answered in version 0 with UNSUPPORTED_VERSION and our own range (in kafka_apis, because such a body can't
be decoded). A software name or version that is no word of letters,
digits, '.' and '-' is INVALID_REQUEST. Features are answered as by Apache Kafka 3.9 with ZooKeeper: epoch 0, no lists.
"""

from __future__ import annotations

import re

from pybroker.broker.context import RequestContext
from pybroker.broker.kafka_apis import HANDLERS
from pybroker.protocol.errors import Errors, KafkaError
from pybroker.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

CONSUMER_PROTOCOL = (68, 69)  # ConsumerGroupHeartbeat and -Describe
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def handle(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        raise KafkaError(Errors.INVALID_REQUEST)
    hidden = () if context.services.foreign_brokers.none else CONSUMER_PROTOCOL
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=served.lowest, max_version=served.highest)
            for key, served in sorted(HANDLERS.items())
            if key not in hidden
        ],
        finalized_features_epoch=0,
    )
