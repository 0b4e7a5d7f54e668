"""Trains a member's rounds with this machine's OpenGL. Each round starts from the parameters that the host sends."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from glgpt.checkpoint.safetensors_writer import SafetensorsWriter
from glgpt.errors import FileError, GlgptError
from glgpt.federation import protocol, rules
from glgpt.federation.protocol import Vector
from glgpt.federation.session import Session
from glgpt.system.files import cache_path, read_json, staged_folder, write_json, written_whole
from glgpt.system.locks import lock_folder
from glgpt.text.dataset import Ids, check_length, tokenised, windows
from glgpt.text.files import Text
from glgpt.text.tokenizer import load_tokenizer
from glgpt.text.tokenizer_training import FILES as TOKENIZER_FILES
from glgpt.text.tokenizer_training import identity

logger = logging.getLogger(__name__)
MAX_SLOTS = 64  # maximum number of clients that train one session on one machine, for each kind (see `open_slot`)
OnStep = Callable[[int, float | None], str]  # (submitted steps, last known loss) -> "on", "stop" or "drop"


@dataclass(frozen=True)
class Asked:
    """A request to train a round."""

    round: int
    step: int  # number of training steps before the round
    lr: tuple[float, ...]  # learning rate of each step
    seed: int  # seed for drawing the windows of the text
    shard: tuple[int, int]  # (i, m): see `rules.shard_starts`


@dataclass(frozen=True)
class Learned:
    """The result of a round that was trained."""

    parameters: Vector
    loss: float  # mean over the steps, in nats per token
    steps: int
    tokens: int


@dataclass
class Slot:
    """A folder with a client's state for a session on this machine: the client's resume key and AdamW's moments.

    The folder is locked until `unlock` is called, so that another client does not use it.
    """

    folder: Path
    unlock: Callable[[], None]

    @property
    def key(self) -> str:
        """Returns the resume key, or "" before the first join."""
        path = self.folder / "member.json"
        with contextlib.suppress(FileError, OSError, KeyError):
            return str(read_json(path)["resume"])
        return ""

    def keep_key(self, key: str) -> None:
        """Stores the resume key in a file that only this user can read."""
        write_json(self.folder / "member.json", {"resume": key}, private=True)

    def keep_moments(self, arrays: dict[str, np.ndarray], steps: int) -> None:
        """Stores AdamW's moments and the number of steps taken. Raises OSError if the file cannot be written."""
        with written_whole(self.folder / "moments.safetensors") as file:
            writer = SafetensorsWriter(file, {n: a.shape for n, a in arrays.items()}, lambda _: {"steps": str(steps)})
            for name, array in arrays.items():
                writer.add(name, array)
            writer.finish()

    def moments(self) -> tuple[Callable[[str], np.ndarray], int] | None:
        """Returns what `keep_moments` stored, or None if it is missing or unreadable."""
        path = self.folder / "moments.safetensors"
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, a file is not a dict
                return arrays.__getitem__, int(file.metadata()["steps"])
        except Exception as error:  # safetensors has its own exceptions
            logger.warning("%s cannot be read: %s", path, error)
            return None


def host_folder(host: str, session: str) -> Path:
    """Returns the folder in which this machine stores its files for a session of a host.

    The path depends on the host's address as well as on `session`, the session's id, because the host chooses the id.
    Otherwise, a hostile host could use the id of another host's session. The client would then send the hostile host
    the resume key of that session, and updates that depend on the moments of that session.
    """
    return cache_path() / "federation" / hashlib.sha256(host.encode()).hexdigest()[:16] / session


def open_slot(base: Path, kind: str = "") -> Slot:
    """Locks and returns the first free slot in a session's folder `base`. Each `kind` of client has its own slots.

    Raises GlgptError if `MAX_SLOTS` slots are in use.
    """
    for number in range(MAX_SLOTS):
        folder = base / kind / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        if (unlock := lock_folder(folder)) is not None:
            return Slot(folder, unlock)
    raise GlgptError(f"this machine already runs {MAX_SLOTS} clients of this session, the maximum")


def ids_of(session: Session, text: Text, files: Callable[[], dict[str, str]], base: Path) -> Ids:
    """Tokenizes a member's own text with the session's tokenizer, which is stored in the folder `base`.

    If the folder lacks the tokenizer, stores the files that `files` returns by name. Raises GlgptError if these are not
    the files of the session's tokenizer.
    """
    folder = base / "tokenizer"
    if not folder.exists() or identity(folder) != session.tokenizer:
        with staged_folder(folder) as staged:
            for name, content in files().items():
                if name in TOKENIZER_FILES:
                    with written_whole(staged / name) as file:
                        file.write(content.encode())
    tokenizer = load_tokenizer(folder, session.model.vocab_size)
    if tokenizer is None or identity(folder) != session.tokenizer:
        raise GlgptError("the received tokenizer is not the session's; try again")
    return tokenised(text, tokenizer, f"federation-{session.tokenizer[:16]}-{text.digest()[:16]}")


class Worker:
    """Trains rounds of a session on the token ids `ids` of a text.

    AdamW's moments are carried over from round to round, and stored in `slot`. Raises GlgptError if the text has fewer
    than `context` + 1 tokens: a training step reads windows of `context` tokens and the token after each window.
    """

    def __init__(self, session: Session, ids: Ids, device: str | int, slot: Slot) -> None:
        from glgpt.training.trainer import Trainer  # opens the graphics library

        check_length(ids, session.settings.context, "training")
        self.session, self.ids = session, ids
        r = session.recipe
        self.trainer = Trainer(
            session.model,
            batch=r.batch,
            context=r.context,
            accumulate=r.accumulate,
            betas=r.betas,
            eps=r.eps,
            weight_decay=r.weight_decay,
            clip=r.clip or None,
            dropout=r.dropout,
            recompute=r.recompute,
            seed=session.settings.seed,
            device=device,
        )
        self.slot = slot
        if slot.key and (kept := slot.moments()):
            self.trainer.set_moments(*kept)

    def close(self) -> None:
        """Releases the device and the slot."""
        self.slot.unlock()
        self.trainer.close()

    def train(self, asked: Asked, before: Vector, on_step: OnStep) -> Learned | None:
        """Trains a round from the parameters `before`. Returns None if `on_step` returned "drop".

        `on_step` is called after each step is submitted; if it returns "stop", the round ends early with the steps so
        far. Raises GlgptError if the text is too short for the shard, and if the loss or a parameter is not finite.
        """
        s = self.session.settings
        rows, results = s.batch * s.accumulate, []
        (i, shards), places = asked.shard, len(self.ids) - s.context
        if not 0 <= i < shards <= places:
            raise GlgptError(f"round {asked.round} requests shard {i} of {shards}; the text has {places} positions")
        self.trainer.set_parameters(protocol.unflatten(before, self.session.shapes()))
        for i, lr in enumerate(asked.lr):
            first = rules.shard_starts(asked.seed, asked.step + i + 1, rows, places, asked.shard)
            results += self.trainer.submit(*windows(self.ids, first, s.context), lr)
            said = on_step(i + 1, results[-1].loss if results else None)
            if said == "drop":
                self.trainer.drain()
                return None
            if said == "stop":
                break
        results += self.trainer.drain()
        after = protocol.flatten(self.trainer.parameters())
        loss = float(np.mean([r.loss for r in results]))
        if not (math.isfinite(loss) and np.isfinite(after).all()):
            raise GlgptError(f"round {asked.round}: the loss or a parameter is not finite on this device")
        self.slot.keep_moments(self.trainer.moments(), self.trainer.steps_done)
        return Learned(after, loss, len(results), len(results) * rows * s.context)
