"""Measures how much of a round is overhead: sending, combining, evaluating, waiting. See docs/design/performance.md.

    python tests/federation/exchange.py TEXT [--clients 4] [--rounds 3] [--local-steps 100] [--device software]

Runs a session of the preset nano with clients on this machine. Prints a JSON line; `share` is the part of a round in
which no client trains.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from helpers.federation_commands import running  # noqa: E402


def client(link: str, device: str, last: int, said: Any) -> None:
    """Joins, trains, and puts (round, step, time) of each round's first and last step into the queue `said`."""
    from glgpt.federation.member.host import Link
    from glgpt.federation.member.join import Client, Hooks

    def tell(number: int, step: int, _: float) -> None:
        if step in (1, last):
            said.put((number, step, time.time()))

    Client(Link.parse(link), None, name="", device=device, hooks=Hooks(on_step=tell)).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--local-steps", type=int, default=100)
    parser.add_argument("--device", default="software")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    said = spawn.Queue()
    terms = ["--rounds", str(args.rounds), "--local-steps", str(args.local_steps), "--quorum", str(args.clients)]
    terms += ["--port", "0", "--no-page", "--device", args.device, "--round-seconds", "3600"]
    with tempfile.TemporaryDirectory() as folder, running() as start:
        host = start("serve", args.text, "--out", str(Path(folder) / "run"), *terms)
        host.wait(lambda: host.events("ready"))
        link = host.events("ready")[0]["desktop"]
        joined = [
            spawn.Process(target=client, args=(link, args.device, args.local_steps, said)) for _ in range(args.clients)
        ]
        for process in joined:
            process.start()
        host.wait(lambda: host.events("done"), 3600)
        for process in joined:
            process.join(60)
    steps: dict[int, list[tuple[int, float]]] = {}
    while not said.empty():
        number, step, at = said.get()
        steps.setdefault(number, []).append((step, at))
    shares = []
    for number in range(2, args.rounds + 1):  # a round lasts from the previous round's last step to its own last step
        ended = max(at for _, at in steps[number])
        whole = ended - max(at for _, at in steps[number - 1])
        first = min(at for step, at in steps[number] if step == 1)
        trained = (ended - first) * args.local_steps / (args.local_steps - 1)  # `first` is the end of step 1
        shares.append({"seconds": round(whole, 2), "share": round(1 - trained / whole, 4)})
    share = round(statistics.median(one["share"] for one in shares), 4)
    print(json.dumps(vars(args) | {"text": Path(args.text).name, "rounds_timed": shares, "share": share}))


if __name__ == "__main__":
    main()
