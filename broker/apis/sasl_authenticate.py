"""SaslAuthenticate (API key 36): one step of a SASL exchange.

versions | what they add
-------- | ---------------------------------------------------------------------------------------------
0-2      | token and answer; 1 the session's lifetime (KIP-368), 2 flexible

On a listener without SASL no exchange can be under way: ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.protocol.errors import Errors
from pybroker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

if TYPE_CHECKING:
    from pybroker.broker.context import RequestContext

UNEXPECTED = "SaslAuthenticate request received after successful authentication"


def handle(context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Refuse: a connection that gets this far needs no authentication, or has it."""
    return SaslAuthenticateResponse(error_code=Errors.ILLEGAL_SASL_STATE, error_message=UNEXPECTED)
