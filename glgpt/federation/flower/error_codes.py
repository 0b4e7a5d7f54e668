"""Lists Flower's error codes for a node that was offline."""

from __future__ import annotations

from flwr.common.constant import ErrorCode

# Codes in an error reply which mean that the node was offline, not that the app on the node failed
OFFLINE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
