"""Simulates a federation of many clients on one device, by the rules of `glgpt.federation`.

The results are in docs/design/performance.md.

    python tests/federation/simulate.py TEXT --clients 100 --asked 10 --drop 0.3 --local-steps 10 --steps 1000

Every client draws its windows of the text with `rules.shard_starts`, retains its AdamW moments between rounds, and may
drop out of a round. For comparison the script also trains centrally, once for as many steps as one client takes, and
once on as many tokens as all clients see.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from glgpt.federation import protocol, rules
from glgpt.text.dataset import fixed_windows, windows
from glgpt.training.settings import Settings
from glgpt.training.trainer import Trainer

POISON = -10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    for name, default in (("--clients", 100), ("--asked", 10), ("--local-steps", 10), ("--steps", 1000), ("--seed", 0)):
        parser.add_argument(name, type=int, default=default)
    outer = (("--outer-lr", protocol.OUTER_LR), ("--outer-momentum", protocol.OUTER_MOMENTUM))
    for name, default in (("--drop", 0.3), ("--lr", 3e-3), *outer):
        parser.add_argument(name, type=float, default=default)
    parser.add_argument("--dtype", choices=protocol.DTYPES, default="f16")
    parser.add_argument("--poisoned", type=int, default=0, help="number of clients that send -10 times their change")
    parser.add_argument("--public", action="store_true", help="clip and trim the updates")
    parser.add_argument("--device", default="software", help="as for glgpt train (default: software)")
    parser.add_argument("--runs", default="federated,steps,tokens", help="comma-separated runs to make")
    args = parser.parse_args()
    ids = np.frombuffer(args.text.read_bytes(), np.uint8).astype(np.uint16)
    cut = int(0.9 * len(ids))
    study = Study(args, ids[:cut], ids[cut:])
    for name in args.runs.split(","):
        began = time.monotonic()
        loss = {"federated": study.federated, "steps": study.central, "tokens": study.tokens}[name]()
        line = {"run": name, "validation_loss": round(loss, 4), "seconds": round(time.monotonic() - began, 1)}
        print(json.dumps(line | {k: v for k, v in vars(args).items() if k not in ("text", "runs")}), flush=True)


class Study:
    """Runs every client in sequence, with one model on one device."""

    def __init__(self, args: argparse.Namespace, train: Any, held: Any) -> None:
        self.args, self.train, self.held = args, train, held
        shape = {"n_layer": 2, "n_head": 2, "n_embd": 48, "context": 32, "batch": 8}
        rates = {"lr": args.lr, "min_lr": args.lr / 10, "warmup": args.steps // 20}
        self.s = Settings(tokenizer="bytes", steps=args.steps, seed=args.seed, **rates, **shape)
        self.places = len(train) - self.s.context

    def trainer(self, batch: int) -> Trainer:
        s = self.s
        return Trainer(
            s.model_config(256),
            batch=batch,
            context=s.context,
            lr=s.lr,
            betas=(s.beta1, 0.99),
            seed=s.seed,
            device=self.args.device,
        )

    def judged(self, trainer: Trainer) -> float:
        first = fixed_windows(self.held, self.s.context, 1 << 14)
        return trainer.evaluate(*windows(self.held, first, self.s.context))

    def central(self, batch: int | None = None) -> float:
        """Trains for as many optimizer steps as a client takes. Returns the validation loss."""
        s = self.s
        with self.trainer(batch or s.batch) as trainer:
            for step in range(1, s.steps + 1):
                first = rules.shard_starts(s.seed, step, batch or s.batch, self.places, (0, 1))
                trainer.submit(*windows(self.train, first, s.context), s.lr_at(step))
            trainer.drain()
            return self.judged(trainer)

    def tokens(self) -> float:
        """Trains on as many tokens as all clients see, with a larger batch and the same steps. Returns the loss."""
        return self.central(self.s.batch * max(1, round(self.args.asked * (1 - self.args.drop))))

    def federated(self) -> float:
        s, a = self.s, self.args
        outer, rng = rules.Outer(a.outer_lr, a.outer_momentum), np.random.default_rng(s.seed)
        moments: dict[int, tuple[Any, int]] = {}
        with self.trainer(s.batch) as trainer:
            shapes = {name: tuple(p.shape) for name, p in trainer.config.parameters.items()}
            none = {name: np.zeros_like(value) for name, value in trainer.moments().items()}
            parameters = protocol.flatten(trainer.parameters())
            for number in range(1, s.steps // a.local_steps + 1):
                asked = rng.choice(a.clients, a.asked, replace=False)
                there = [int(c) for c in asked if rng.random() >= a.drop] or [int(asked[0])]
                after = [self.client(trainer, c, number, parameters, shapes, moments, none) for c in there]
                for i in range(min(a.poisoned, len(after))):
                    after[i] = parameters + np.float32(POISON) * (after[i] - parameters)
                if a.public:
                    factors = rules.clip_factors([rules.norm(x - parameters) for x in after])
                    after = [parameters + (x - parameters) * np.float32(f) for x, f in zip(after, factors, strict=True)]
                rows = np.stack(after)
                mean = rules.trimmed_mean(rows) if a.public else rules.weighted_mean(rows, [1.0] * len(rows))
                parameters = outer.step(parameters, mean)
            trainer.set_parameters(protocol.unflatten(parameters, shapes))
            return self.judged(trainer)

    def client(self, trainer: Trainer, c: int, number: int, before: Any, shapes: Any, moments: Any, none: Any) -> Any:
        """Returns a client's parameters after its steps of a round, as the gateway decodes them."""
        s, a = self.s, self.args
        held, steps = moments.get(c, (none, 0))
        trainer.set_moments(held.__getitem__, steps)
        trainer.set_parameters(protocol.unflatten(before, shapes))
        seed, shard = rules.client_seed(s.seed, c), (rules.shard_of(c, number, a.clients), a.clients)
        for i in range(a.local_steps):
            step = (number - 1) * a.local_steps + i + 1
            first = rules.shard_starts(seed, step, s.batch, self.places, shard)
            trainer.submit(*windows(self.train, first, s.context), s.lr_at(step))
        trainer.drain()
        moments[c] = trainer.moments(), trainer.steps_done
        after = protocol.flatten(trainer.parameters())
        data, scale = protocol.encode(a.dtype, after, before)
        return protocol.decode(a.dtype, data, scale, before)


if __name__ == "__main__":
    main()
