"""Lists Flower's error codes for a node that was offline."""

from __future__ import annotations

from flwr.common.constant import ErrorCode

# Codes of error replies that mean that the node was offline, and not that the app on the node failed
OFFLINE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
