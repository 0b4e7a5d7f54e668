"""Kills a federation's processes at random moments and measures what each kill costs: see docs/design/performance.md.

    python tests/federation/kills.py [--count 20] [--only superlink,serve] [--seed 0] [--away 90]

Runs one session per process name. The process gets SIGKILL at random moments, with an undisturbed round between two
kills for comparison. Prints a JSON line per session. Exits with 1 if a session did not finish or an update was lost.
`--away` stops SuperLink for this many seconds (SIGSTOP) before the kill, and tests only SuperLink.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from helpers.federation_commands import TIMEOUT_S, Command, running  # noqa: E402

from glgpt.system.files import data_path  # noqa: E402

PROCESSES = ("superlink", "gateway", "superexec", "serverapp", "serve")
SMALL = ("--tokenizer", "bytes", "--batch", "2", "--eval-tokens", "512", "--no-page", "--device", "software")
REPEATS = ("serverapp", "superlink", "serve")  # killing these may end the ServerApp, which then repeats the round


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--only", default=",".join(PROCESSES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--away", type=float, default=0.0)
    args = parser.parse_args()
    failed = False
    for what in ("superlink",) if args.away else args.only.split(","):
        with tempfile.TemporaryDirectory() as folder, running() as start:
            found = session(Path(folder), start, what, args.count, random.Random(f"{args.seed} {what}"), args.away)
        print(json.dumps(found), flush=True)
        failed |= bool(found["wrong"])
    return int(failed)


def session(
    folder: Path, start: Any, what: str, count: int, chance: random.Random, away: float = 0.0
) -> dict[str, Any]:
    """Runs a session of two desktops in which `what` is killed `count` times, with undisturbed rounds in between."""
    text, run = folder / "play.txt", folder / "run"
    text.write_bytes(data_path("tests/data/shakespeare-validation.txt").read_bytes()[:20_000])
    rounds, port = 4 * count + 6, str(chance.randrange(20000, 30000))
    terms = (str(text), *SMALL, "--rounds", str(rounds), "--local-steps", "2", "--quorum", "2", "--grace", "2")
    serve = ("serve", "--out", str(run), "--port", port, *terms)
    host = start(*serve)
    host.wait(lambda: host.events("ready"))
    link = host.events("ready")[0]["desktop"]
    joined = [start("join", link, "--name", name, "--device", "software") for name in "ab"]
    watch = Watch(run, host)
    watch.next_round()
    calm, killed = [watch.next_round()], []
    for _ in range(count):
        calm.append(watch.next_round())
        time.sleep(chance.uniform(0, statistics.median(calm)))
        if what == "serve":
            os.kill(host.process.pid, signal.SIGKILL)
            host.process.wait()
            watch.host = host = start(*serve)  # starts the same command again
        elif away:
            stop_for(pid_of(run, what), away)
        else:
            kill(run, what)
        killed.append(watch.next_round())
    host.wait(lambda: host.events("done"))
    for client in joined:
        client.process.wait(60)
    usual = statistics.median(calm)
    longer = sorted(round(seconds - usual, 1) for seconds in killed)
    found = {"killed": what, "times": count, "away": away, "usual_round": round(usual, 1)}
    found |= {"longer_median": statistics.median(longer), "longer_most": longer[-1], "longer": longer}
    return found | {"wrong": wrongs(run, rounds, what, joined)}


class Watch:
    """Observes the finished rounds of a session."""

    def __init__(self, run: Path, host: Command) -> None:
        self.path, self.done, self.at = run / "federation" / "rounds.jsonl", 0, time.monotonic()
        self.host = host

    def next_round(self) -> float:
        """Waits until another round is done. Returns the seconds since the previous round was done."""
        before, end = self.at, time.monotonic() + TIMEOUT_S
        while self._done() == self.done:
            assert time.monotonic() < end, f"no round after {self.done} within {TIMEOUT_S:g} s"
            assert not self.host.process.poll(), self.host.errors  # `serve` must not fail
            time.sleep(0.05)
        self.done, self.at = self._done(), time.monotonic()
        return self.at - before

    def _done(self) -> int:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return max(
            (json.loads(line)["round"] for line in lines if '"clients"' in line and line.endswith("}")), default=0
        )


def kill(run: Path, what: str) -> None:
    """Kills a session's process, if necessary after waiting for its restart."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            os.kill(pid_of(run, what), signal.SIGKILL)
            return
        except ProcessLookupError:
            assert time.monotonic() < end, f"no {what} within {TIMEOUT_S:g} s"
            time.sleep(0.05)


def stop_for(pid: int, seconds: float) -> None:
    """Stops a process for this many seconds, then kills it."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)


def wrongs(run: Path, rounds: int, what: str, joined: list[Command]) -> list[str]:
    """Returns the failures: missing rounds, rounds without both updates, clients that gave up or trained twice."""
    notes = [json.loads(line) for line in (run / "federation" / "rounds.jsonl").read_text().splitlines()]
    counted = [note for note in notes if "clients" in note]
    found = [f"round {n} is missing" for n in range(1, rounds + 1) if n not in {note["round"] for note in counted}]
    found += [f"round {note['round']} has {note['clients']} updates of 2" for note in counted if note["clients"] != 2]
    for client in joined:
        said = [line["why"] for line in client.events("left")]
        if said != ["all rounds are done"]:
            found.append(f"a client left: {said} {client.errors[-3:]}")
        per_round = [line["round"] for line in client.events("accepted")]
        again = sorted({n for n in per_round if per_round.count(n) > 1})
        if again and what not in REPEATS:
            found.append(f"rounds {again} were trained twice")
    return found


def pid_of(run: Path, what: str) -> int:
    """Returns the process id of a session's process."""
    if what == "serverapp":
        return int((run / "federation" / "serverapp.pid").read_text())
    order = ("superlink", "gateway", "superexec")
    return int((run / "federation" / "processes").read_text().split()[order.index(what)])


if __name__ == "__main__":
    sys.exit(main())
