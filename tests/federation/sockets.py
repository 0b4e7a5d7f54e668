"""Measures the memory and processor time that many sockets cost a gateway: see docs/design/performance.md.

    python tests/federation/sockets.py [--clients 100] [--rounds 3] [--whole] [--at-once]

All clients of a nano model (0.83 M parameters) are connected at once, and each sends one f16 change per round. The
gateway is a separate process with a substitute for Flower. As float32, 100 updates exceed 256 MiB, so the gateway
passes only their mean to Flower, unless `--whole` is given. Prints a JSON line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from helpers.fake_session import FakeFlower, make_files, serving  # noqa: E402
from test_gateway import Peer  # noqa: E402

from glgpt.training.settings import settings_for  # noqa: E402


def gateway(run: str, clients: int, rounds: int, whole: bool, pipe: Any) -> None:
    """Runs a gateway in this process. Sends its address, an invitation and the session, and in the end measurements."""
    settings = settings_for("nano", None, {"tokenizer": "bytes"})
    terms = {"rounds": rounds, "quorum": clients, "shards": clients, "members": clients, "dtype": "f16"}
    config = settings.model_config(256)
    shape = {"config": config.fields(), "settings": settings, "parameters": config.parameter_count}
    files = make_files(Path(run), **terms, **shape, train_tokens=100_000)
    (files.run / "vocab.json").write_text("{}")
    before = resource.getrusage(resource.RUSAGE_SELF)
    with serving(files, FakeFlower(files)) as host:
        if whole:
            host.gateway.rounds.most_held = 1 << 40
        pipe.send((host.address, host.gateway.invitations.create(), host.gateway.session))
        pipe.recv()  # waits until all rounds are done
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    pipe.send({"most_mb": round(used.ru_maxrss / 1000), "before_mb": round(before.ru_maxrss / 1000), "cpu_s": cpu})


class There:
    """Has the attributes of a gateway that a `Peer` uses. The gateway is in another process."""

    def __init__(self, address: str, session: Any) -> None:
        self.address, self.gateway = address, type("Gateway", (), {"session": session})


def train(peer: Peer) -> float:
    """Receives a round and answers it. Returns the seconds from receiving the round until the update was accepted."""
    round_ = peer.next("round", 120)
    began = time.perf_counter()
    assert peer.train(round_, round_["parameters"] + 1e-3)["type"] == "accepted"
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole", action="store_true", help="pass every update to Flower, not their mean")
    parser.add_argument("--at-once", action="store_true", help="all clients send at the same moment")
    args = parser.parse_args()
    here, there = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        terms = (str(Path(folder) / "run"), args.clients, args.rounds, args.whole, there)
        process = multiprocessing.get_context("spawn").Process(target=gateway, args=terms)
        os.environ["MALLOC_ARENA_MAX"] = "2"  # as `serve` sets it for its gateways
        process.start()
        address, token, session = here.recv()
        peers = [Peer(There(address, session), token) for _ in range(args.clients)]
        times = []
        with ThreadPoolExecutor(args.clients if args.at_once else 1) as pool:
            for _ in range(args.rounds):
                times += pool.map(train, peers)
        here.send("done")
        found = here.recv()
        process.join()
    updates = args.clients * args.rounds
    found["cpu_s_an_update"] = round(found.pop("cpu_s") / updates, 4)
    print(json.dumps(vars(args) | found | {"upload_s_median": round(sorted(times)[len(times) // 2], 4)}))


if __name__ == "__main__":
    main()
