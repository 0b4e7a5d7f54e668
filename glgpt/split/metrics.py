"""Defines the Prometheus metrics of a split server (`--metrics`)."""

from prometheus_client import Counter, Gauge, Histogram

CONNECTIONS = Gauge("glgpt_split_connections", "Open connections that have passed the origin check.")
SESSIONS = Gauge("glgpt_split_sessions", "Sessions with an open connection.")
MAX_SESSIONS = Gauge("glgpt_split_max_sessions", "Maximum number of sessions with caches.")
DRAINING = Gauge("glgpt_split_draining", "1 while the server drains and refuses new steps.")
STEP_SECONDS = Histogram(
    "glgpt_split_step_seconds",
    "Seconds from the arrival of a message to its answer.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
RECEIVED = Counter("glgpt_split_received_bytes", "Bytes of messages received.")
SENT = Counter("glgpt_split_sent_bytes", "Bytes of messages sent.")
REFUSED = Counter("glgpt_split_refused", "Connections and messages refused, by the protocol's code.", ["code"])
