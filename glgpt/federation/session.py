"""Reads and writes the agreed terms and the state of a session: files in the folder `federation` of its run folder.

`session.json` holds the terms and never changes. `checkpoint.safetensors` holds the parameters, the outer optimizer's
state and the number of the last round; it is on disk before the next round begins. `rounds.jsonl` has several lines
about each round, such as one from each gateway and one with the evaluation. The first gateway's private state is in
the same folder; each other gateway has a folder `site-K` in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from glgpt import models
from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.federation.aggregation import strategies
from glgpt.federation.invitations import Invitations
from glgpt.federation.protocol import Dtype, Vector
from glgpt.federation.rules import Bounds, NormLimits, StepLimits, loss_limit, norm, recent_norms
from glgpt.models.spec import ModelConfig
from glgpt.system.files import read_text, written_whole
from glgpt.text.tokenizer_training import FILES as TOKENIZER_FILES
from glgpt.training.program import Recipe
from glgpt.training.records import validated
from glgpt.training.settings import Settings

FOLDER, SESSION, CHECKPOINT, ROUNDS = "federation", "session.json", "checkpoint.safetensors", "rounds.jsonl"
PAUSED, ENDED = "paused", "ended"  # marker files for decisions of the host
UNDONE = "undone"  # file with the number of rounds that rollbacks have undone; 0 if the file is missing
KEPT_CHECKPOINTS = 2  # number of earlier checkpoints that are retained in addition to the last one


class Session(BaseModel):
    """The terms of a session, on which all members agree."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    name: str
    rounds: Annotated[int, Field(ge=1)]
    local_steps: Annotated[int, Field(ge=1)]
    quorum: Annotated[int, Field(ge=1)]  # minimum number of updates with which a round can close
    # Seconds from a round's start to its deadline; without the quorum, the deadline is extended by as many seconds
    round_seconds: Annotated[float, Field(gt=0)]
    # Seconds for which a round that has its quorum waits for further updates, but not beyond its deadline
    grace: Annotated[float, Field(ge=0)]
    strategy: Annotated[str, AfterValidator(strategies.checked_name)]
    outer_lr: float
    outer_momentum: float
    public: bool  # True: updates are clipped; without noise, a strategy with `trims` also uses a trimmed mean
    # Standard deviation of the noise on a round's mean, in units of dp_clip / quorum; 0: no noise
    dp_noise: Annotated[float, Field(ge=0)] = 0.0
    dp_clip: Annotated[float, Field(gt=0)] = 1.0  # norm to which changes are clipped if there is noise
    dtype: Dtype  # format in which clients send updates
    shards: Annotated[int, Field(ge=1)]  # number of shares into which the text's positions are divided
    members: Annotated[int, Field(ge=1)]  # maximum number of members of each gateway
    gateways: Annotated[int, Field(ge=1)] = 1  # number of gateways; each has its own members, port and Flower node
    digest: str  # hash of the training program, see `training.program.program_digest`
    tokenizer: str  # hash of the tokenizer, see `text.tokenizer_training.identity`
    config: dict[str, Any]
    settings: Settings
    train_tokens: int
    parameters: int

    @property
    def model(self) -> ModelConfig:
        """Returns the configuration of the trained model."""
        return models.from_fields(self.config)

    @property
    def recipe(self) -> Recipe:
        """Returns the settings that the training program depends on."""
        return recipe_of(self.settings)

    @property
    def bounds(self) -> Bounds:
        """Returns the largest values that an update of a round may claim."""
        return Bounds(self.local_steps, self.recipe.rows, loss_limit(self.model.vocab_size))

    @property
    def bounded(self) -> bool:
        """True if gateways limit the effect of one device on the mean, so that all changes must go through gateways."""
        return self.public or bool(self.dp_noise)

    @property
    def seats(self) -> int:
        """Returns the maximum number of members of all gateways together."""
        return seat_count(self.members, self.gateways, self.shards)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each parameter by name, in the order of the vector that holds all parameters."""
        return {name: tuple(p.shape) for name, p in self.model.parameters.items()}

    def first_step(self, number: int) -> int:
        """Returns the number of training steps before round `number`; the first round has number 1."""
        return (number - 1) * self.local_steps

    def rates(self, number: int) -> list[float]:
        """Returns the learning rates of a round's steps."""
        first = self.first_step(number)
        return [self.settings.lr_at(min(first + i + 1, self.settings.steps)) for i in range(self.local_steps)]

    def norm_limits(self, number: int, parameters: Vector, lines: Iterable[Mapping[str, Any]]) -> NormLimits:
        """Returns the limits on the norm of a change in round `number`, which starts from `parameters`.

        `lines` are those of `rounds.jsonl`.
        """
        recipe = self.recipe
        steps = StepLimits(self.parameters, tuple(self.rates(number)), recipe.betas, recipe.weight_decay)
        return NormLimits(norm(parameters), recent_norms(lines, number), steps)


def recipe_of(s: Settings) -> Recipe:
    """Returns the settings in `s` that the training program depends on."""
    return Recipe(
        s.batch, s.context, s.accumulate, (s.beta1, s.beta2), 1e-8, s.weight_decay, s.clip, s.dropout, s.recompute
    )


def seat_count(members: int, gateways: int, shards: int) -> int:
    """Returns the maximum number of members of a session, given the maximum `members` of each gateway."""
    return min(members * gateways, shards)


@dataclass(frozen=True)
class Checkpoint:
    """The server's state after `round` rounds."""

    round: int
    parameters: Vector
    memory: Mapping[str, NDArray[Any]]  # state of the strategy by name, such as its outer optimizer's velocity


class NotFiniteError(GlgptError):
    """Raised instead of saving parameters or optimizer state with a NaN or an infinity."""


class Files:
    """Reads and writes a session's folder."""

    def __init__(self, run: Path, site: int = 0) -> None:
        self.run = run
        self.folder = run / FOLDER
        self.site = site  # index of the gateway
        self.site_folder = self.folder / f"site-{site}" if site else self.folder

    def create(self, session: Session, parameters: Vector, ids: NDArray[Any]) -> None:
        """Writes a new session. The checkpoint is written last: without a checkpoint, a folder holds no session.

        `ids` are the token ids of the text.
        """
        self.folder.mkdir()
        self.folder.chmod(0o700)  # it holds keys
        for name in ("invitation.key", "superexec.key"):
            self.secret(name)
        np.save(self.ids, np.asarray(ids))
        (self.folder / SESSION).write_text(session.model_dump_json(indent=1) + "\n", "utf-8")
        self.save(Checkpoint(0, parameters, {}))

    def secret(self, name: str) -> bytes:
        """Returns 32 random bytes, created on the first call and stored in the file `name`."""
        path = self.folder / name
        if not path.exists():
            with written_whole(path, private=True) as file:
                file.write(secrets.token_bytes(32))
        return path.read_bytes()

    @property
    def exists(self) -> bool:
        """True if the folder holds a session."""
        return (self.folder / CHECKPOINT).is_file()

    def session(self) -> Session:
        """Returns the session's terms. Raises FileError if the session is missing or damaged."""
        path = self.folder / SESSION
        if not self.exists or not path.is_file():
            raise FileError(f"{quoted(self.run, 300)} holds no federation; start one with glgpt federate serve")
        return validated(Session, read_text(path), f"{quoted(path, 300)} is damaged")

    def save(self, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint to disk before it returns, and retains the two previous checkpoints.

        Raises NotFiniteError if the parameters or the outer optimizer's state are not finite.
        """
        arrays = {"parameters": checkpoint.parameters, **{f"memory.{k}": v for k, v in checkpoint.memory.items()}}
        for name, values in arrays.items():
            if not np.isfinite(values).all():
                raise NotFiniteError(f"round {checkpoint.round}: {name} would hold values that are not finite")
        path = self.folder / CHECKPOINT
        if path.exists() and (held := self.round_of()) < checkpoint.round:
            kept = self.kept(held)
            kept.unlink(missing_ok=True)
            try:
                os.link(path, kept)
            except OSError:  # a file system without links
                shutil.copyfile(path, kept)
        write_synced(path, save(arrays, {"round": str(checkpoint.round)}))
        for old in self.kept_rounds()[:-KEPT_CHECKPOINTS]:
            self.kept(old).unlink()

    def kept(self, number: int) -> Path:
        """Returns the file of the retained checkpoint of round `number`."""
        return self.folder / f"checkpoint-{number}.safetensors"

    def kept_rounds(self) -> list[int]:
        """Returns the earlier rounds whose checkpoints are retained, in order."""
        names = (path.stem.removeprefix("checkpoint-") for path in self.folder.glob("checkpoint-*.safetensors"))
        return sorted(int(name) for name in names if name.isdecimal())

    def go_back(self, number: int) -> None:
        """Makes the retained checkpoint of round `number` the last checkpoint."""
        self.kept(number).replace(self.folder / CHECKPOINT)
        for later in self.kept_rounds():
            if later > number:
                self.kept(later).unlink()

    def checkpoint(self, path: Path | None = None) -> Checkpoint:
        """Returns the last checkpoint, or that at `path`. Raises FileError if the file is missing or damaged."""
        path = path or self.folder / CHECKPOINT
        try:
            with safe_open(path, framework="numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, a file is not a dict
                number = int((file.metadata() or {})["round"])
            parameters = arrays.pop("parameters")
        except Exception as error:  # safetensors has its own exceptions
            raise self._damaged(path, error) from None
        return Checkpoint(number, parameters, {k.removeprefix("memory."): v for k, v in arrays.items()})

    def round_of(self) -> int:
        """Returns the round of the last checkpoint, without reading its arrays. Raises FileError if it is damaged."""
        path = self.folder / CHECKPOINT
        try:
            with safe_open(path, framework="numpy") as file:
                return int((file.metadata() or {})["round"])
        except (SafetensorError, KeyError, ValueError) as error:
            raise self._damaged(path, error) from None

    def _damaged(self, path: Path, error: Exception) -> FileError:
        """Returns the error for a damaged checkpoint. If an earlier one is retained, the message says how to use it."""
        advice = ""
        if path.name == CHECKPOINT and self.kept_rounds():
            advice = "; return to the previous round with glgpt federate serve --out RUN --rollback 1"
        return FileError(f"{quoted(path, 300)} is damaged: {quoted(error, 200)}{advice}")

    def note(self, line: Mapping[str, Any]) -> None:
        """Appends a line to `rounds.jsonl`."""
        append_line(self.folder / ROUNDS, json.dumps(line, allow_nan=False))

    def notes(self) -> list[dict[str, Any]]:
        """Returns one line per round, merged from the round's lines in `rounds.jsonl`. Skips incomplete lines."""
        return by_round(json_lines(self.folder / ROUNDS))

    def keep_notes(self, number: int) -> None:
        """Deletes the lines of rounds after `number`, and the evaluation of round `number`."""
        lines = [x for x in json_lines(self.folder / ROUNDS) if x["round"] < number + ("clients" in x)]
        write_synced(self.folder / ROUNDS, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def undone_rounds(self) -> int:
        """Returns the number of rounds that rollbacks have undone.

        These rounds still count for the privacy budget, because members have seen the results. Raises FileError if the
        file with the number is damaged.
        """
        path = self.folder / UNDONE
        text = read_text(path).strip() if path.exists() else "0"  # an editor or `echo` ends the file with a newline
        if not text.isdecimal() or len(text) > 9:
            raise FileError(
                f"{quoted(path, 300)} is damaged: {written(text)} is not a number of rounds; write the number "
                "of rounds that rollbacks have undone into this file"
            )
        return int(text)

    def count_undone(self, rounds: int) -> None:
        """Adds `rounds` to the number that `undone_rounds` returns."""
        write_synced(self.folder / UNDONE, str(self.undone_rounds() + rounds).encode())

    @property
    def paused(self) -> bool:
        """True if the host paused the session."""
        return (self.folder / PAUSED).exists()

    def pause(self, paused: bool) -> None:
        """Pauses or resumes the session for all gateways. The session stays paused after a restart."""
        if paused:
            (self.folder / PAUSED).touch()
        else:
            (self.folder / PAUSED).unlink(missing_ok=True)

    def invitations(self) -> Invitations:
        """Returns the invitations of this gateway. Other gateways do not accept these invitations."""
        self.site_folder.mkdir(exist_ok=True)
        return Invitations(self.site_folder / "invitations.json", self.secret("invitation.key"), self.session().id)

    @property
    def logs(self) -> Path:
        """Returns the folder of the processes' logs."""
        return self.folder / "logs"

    @property
    def page(self) -> Path:
        """Returns the folder of the exported page; it is missing if no page was exported."""
        return self.folder / "page"

    def tokenizer_files(self) -> dict[str, str]:
        """Returns the contents of the tokenizer's files by name."""
        found = {name: self.run / name for name in TOKENIZER_FILES}
        return {name: path.read_text("utf-8") for name, path in found.items() if path.is_file()}

    def gateway_nodes(self) -> set[int]:
        """Returns the Flower node ids of the gateways that have connected to SuperLink before.

        Once all gateways have connected, all other nodes are supernodes.
        """
        paths = (Files(self.run, site).node_number for site in range(self.session().gateways))
        return {int(path.read_text("utf-8")) for path in paths if path.exists()}

    @property
    def node_key(self) -> Path:
        """Returns the path of this gateway's node key."""
        return self.site_folder / "site.key"

    @property
    def node_number(self) -> Path:
        """Returns the path of this gateway's Flower node id; it exists after the first connection."""
        return self.node_key.with_suffix(".node")

    @property
    def ids(self) -> Path:
        """Returns the path of the text's token ids (uint16 or uint32)."""
        return self.folder / "train.npy"


def by_round(lines: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merges lines of `rounds.jsonl` into one per round, in the order of the rounds.

    If a gateway or supernode has several lines about a round, a later line replaces the fields that both lines have.
    """
    found: dict[int, dict[int | None, dict[str, Any]]] = {}
    for line in lines:
        kinds = found.setdefault(line["round"], {})
        kind = line.pop("site", 0) if "clients" in line else None  # None: a line about the whole round
        kinds[kind] = kinds.get(kind, {}) | line
    return [_together(kinds.pop(None, {}), list(kinds.values())) for _, kinds in sorted(found.items())]


def _together(whole: dict[str, Any], sites: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges the line about a whole round and the lines of its `sites` (gateways and supernodes) into one line."""
    one = {name: value for line in (*sites, whole) for name, value in line.items()}
    if len(sites) < 2:
        return one
    tokens = sum(line["tokens"] for line in sites)
    return one | {
        "clients": sum(line["clients"] for line in sites),
        "tokens": tokens,
        "loss": sum(line["loss"] * line["tokens"] for line in sites) / tokens,
        "seconds": max(line["seconds"] for line in sites),
        "streamed": any(line["streamed"] for line in sites),
        "devices": [device for line in sites for device in line["devices"]],
    }


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects in a file of JSON lines. Skips incomplete lines, such as those that a killed process wrote."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n"):
        try:
            if line:
                yield json.loads(line)
        except ValueError:
            continue


def append_line(path: Path, line: str) -> None:
    """Appends a line to a file, and returns when the line is on disk.

    If the file ends with an incomplete line, which a full disk or a killed process left, starts a new line first.
    """
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
        start = b"" if file.read(1) in (b"", b"\n") else b"\n"
        file.write(start + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file atomically, and returns when the file is on disk."""
    with written_whole(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if os.name != "posix":
        return
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def weights_id(number: int, parameters: Vector) -> str:
    """Returns a name for the weights from which a round starts: the round's number and a hash of the weights."""
    return f"{number}-{hashlib.sha256(parameters.tobytes()).hexdigest()[:16]}"
