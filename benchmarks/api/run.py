"""`make bench-api`: measures how many tokens per second `glgpt api` generates for one client and for several clients.

    python benchmarks/api/run.py                                       print a table for one client and eight clients
    python benchmarks/api/run.py --rounds 7 --json >results.json
    python benchmarks/api/run.py --device gpu --dtype stored --clients 1 2 4 8
    LP_NUM_THREADS=0 python benchmarks/api/run.py --device software --tokens 8 --rounds 1 --clients 1 2

Starts `glgpt api` on a free port of 127.0.0.1, and ends it after the last round. In each round, every number of clients
is measured without a constraint and with a JSON schema. Each client requests one answer of `--tokens` tokens through
the `openai` package, and all clients start together. A rate is the number of tokens of all answers, divided by the time
from the start until the last answer has arrived; the table shows medians over the rounds. An answer without a
constraint may end early, so the table also has the mean number of tokens per answer. The first round, which compiles
shaders and the schema, does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import openai

from glgpt.errors import GlgptError

MODEL = "smollm2"
TOKENS, ROUNDS, CLIENTS = 128, 5, (1, 8)
MESSAGES = [{"role": "user", "content": "Write a very long story about a journey to the mountains."}]
SAMPLING = {"temperature": 0.8, "top_p": 0.9}
NONE, SCHEMA = "none", "JSON schema"
ANSWER_TIMEOUT_S = 600
MIN_LENGTH_PER_TOKEN = 20  # characters; an answer reaches its maximum number of tokens before this length
END_TIMEOUT_S = 3  # maximum time until the server ends after a signal

Case = tuple[int, str]  # the number of clients, and the constraint
Measured = dict[str, Any]


@contextmanager
def api_server(options: Sequence[str]) -> Iterator[str]:
    """Runs `glgpt api` on a free port until the block ends; yields the base URL for clients.

    The server is in its own session: Ctrl-C in the terminal reaches only this process, which then ends the server.
    Raises GlgptError if the server does not start.
    """
    command = [sys.executable, "-m", "glgpt", "api", *options, "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "GLGPT_API_KEY"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        assert process.stdout
        announced = process.stdout.readline().split()  # "'NAME', context of N tokens: URL"
        if not announced:
            raise GlgptError(f"glgpt api ended with {process.wait()} before it served the model")
        yield announced[-1]
    finally:
        # The server waits for running answers; a second signal ends it at once.
        for end in (process.terminate, process.terminate, process.kill):
            end()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_TIMEOUT_S)
                break


def story_schema(min_length: int) -> Measured:
    """Returns the JSON schema of an object with a title and a story of at least `min_length` characters."""
    fields = {"title": {"type": "string"}, "story": {"type": "string", "minLength": min_length}}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def answer(client: openai.OpenAI, constraint: str, tokens: int, seed: int) -> int:
    """Requests one answer; returns its number of tokens."""
    options: Measured = {"messages": MESSAGES, "max_tokens": tokens, "seed": seed, **SAMPLING}
    if constraint == SCHEMA:
        schema = {"name": "story", "schema": story_schema(MIN_LENGTH_PER_TOKEN * tokens)}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    usage = client.chat.completions.create(model="any", **options).usage
    return usage.completion_tokens if usage else 0


def measure_round(
    pool: ThreadPoolExecutor, clients: Sequence[openai.OpenAI], case: Case, tokens: int, seed: int
) -> Measured:
    """Runs a case once; returns its rate in tokens/s and the mean number of tokens per answer."""
    count, constraint = case
    start = time.perf_counter()
    answers = [pool.submit(answer, clients[i], constraint, tokens, seed + i) for i in range(count)]
    total = sum(each.result() for each in answers)
    return {"rate": total / (time.perf_counter() - start), "tokens": total / count}


def measure(url: str, pool: ThreadPoolExecutor, args: argparse.Namespace) -> dict[Case, list[Measured]]:
    """Returns the results of each case, one for each round; the order of the cases is reversed in every other round."""
    cases = [(count, constraint) for count in args.clients for constraint in (NONE, SCHEMA)]
    found: dict[Case, list[Measured]] = {case: [] for case in cases}
    # Settings of a proxy do not apply to a server on this machine.
    clients = [
        openai.OpenAI(
            base_url=url,
            api_key="none",
            max_retries=0,
            timeout=ANSWER_TIMEOUT_S,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        )
        for _ in range(max(args.clients))
    ]
    for number in range(args.rounds + 1):
        print(f"bench-api: {f'round {number}' if number else 'first answers'}", file=sys.stderr, flush=True)
        for case in cases if number % 2 else reversed(cases):
            result = measure_round(pool, clients, case, args.tokens, 1000 * number)
            if number:
                found[case].append(result)
    return found


def summary(case: Case, runs: Sequence[Measured]) -> Measured:
    """Returns a case's medians over the rounds, and the rate of each round."""
    rates = [run["rate"] for run in runs]
    return {
        "clients": case[0],
        "constraint": case[1],
        "tokens_per_s": statistics.median(rates),
        "tokens_per_answer": statistics.mean(run["tokens"] for run in runs),
        "rounds": rates,
    }


def table(rows: Sequence[Measured]) -> str:
    """Formats the results as text. A ratio is the rate divided by that of the first row with the same constraint."""
    lines = [f"{'clients':>7}  {'constraint':12} {'tokens/s':>9} {'ratio':>7} {'tokens/answer':>14}"]
    for row in rows:
        first = next(r["tokens_per_s"] for r in rows if r["constraint"] == row["constraint"])
        rate = row["tokens_per_s"]
        numbers = f"{rate:9.1f} {rate / first:6.2f}x {row['tokens_per_answer']:14.1f}"
        lines.append(f"{row['clients']:7}  {row['constraint']:12} {numbers}")
    return "\n".join(lines)


def main() -> int:
    """Runs the command line documented above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--model", default=MODEL, help=f"the chat model that is served (default {MODEL})")
    parser.add_argument("--dtype", default="stored", help="format of the weights, as for glgpt api (default stored)")
    parser.add_argument("--device", default="auto", help="device, as for glgpt api (default auto)")
    numbers = "numbers of clients that are measured (default 1 8)"
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, metavar="N", help=numbers)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"number of rounds (default {ROUNDS})")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"tokens of each answer (default {TOKENS})")
    args = parser.parse_args()
    if min(args.rounds, args.tokens, *args.clients) < 1:
        parser.error("--rounds, --tokens and --clients must be at least 1")
    args.clients = list(dict.fromkeys(args.clients))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also ends the server
    options = [args.model, "--dtype", args.dtype, "--device", args.device, "--parallel", str(min(8, max(args.clients)))]
    try:
        # The server ends before the pool: answers that still run then fail, and the pool need not wait for them.
        with ThreadPoolExecutor(max(args.clients)) as pool, api_server(options) as url:
            found = measure(url, pool, args)
    except (GlgptError, OSError, openai.OpenAIError) as error:
        print(f"bench-api: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench-api: interrupted", file=sys.stderr)
        return 130
    rows = [summary(case, runs) for case, runs in found.items()]
    settings = {name: getattr(args, name) for name in ("model", "dtype", "device", "tokens")}
    print(json.dumps({"schema": 1, **settings, "rows": rows}, indent=1) if args.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
