"""Defines the Prometheus metrics of the API server (`/metrics`, `--metrics`)."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("glgpt_api_requests", "Answered requests by path and HTTP status.", ["path", "status"])
PROMPT_TOKENS = Counter("glgpt_api_prompt_tokens", "Tokens of all prompts.")
CACHED_TOKENS = Counter("glgpt_api_cached_tokens", "Prompt tokens that were already in the cache.")
GENERATED_TOKENS = Counter("glgpt_api_generated_tokens", "Generated tokens.")
ACTIVE = Gauge("glgpt_api_active_texts", "Texts that are being generated.")
WAITING = Gauge("glgpt_api_waiting_texts", "Texts that wait for their generation to start.")
DRAINING = Gauge("glgpt_api_draining", "1 while the server shuts down and refuses new requests.")
STEPS = Counter("glgpt_api_steps", "Steps of generation: a step reads a prompt or continues all active texts.")
FIRST_TOKEN_SECONDS = Histogram(
    "glgpt_api_first_token_seconds",
    "Seconds from the arrival of a request to its first token.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
REQUEST_SECONDS = Histogram(
    "glgpt_api_request_seconds",
    "Seconds from the arrival of a request to the end of its answer.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
