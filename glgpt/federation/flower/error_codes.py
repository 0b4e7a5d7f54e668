"""Lists the error codes of Flower that the rounds distinguish."""

from __future__ import annotations

from flwr.common.constant import ErrorCode

# Error codes of a reply that mean that a node was offline, not that its app failed
OFFLINE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
