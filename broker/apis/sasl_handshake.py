"""SaslHandshake (API key 17): choose a SASL mechanism.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0        | the token follows without a Kafka header
1        | the token follows in SaslAuthenticate

On a listener without SASL there is nothing to shake hands about: ILLEGAL_SASL_STATE, and no mechanisms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext


def handle(context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Refuse: a connection that gets this far needs no authentication, or has it."""
    return SaslHandshakeResponse(error_code=Errors.ILLEGAL_SASL_STATE)
