"""Runs a model split into stages: some of its blocks run on this machine's device, and the others run on servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from glgpt.checkpoint.digest import model_digest
from glgpt.checkpoint.generation_config import end_of_text
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import default_dtype, weight_formats
from glgpt.errors import ArgumentError, GlgptError, written
from glgpt.gl.player import Player
from glgpt.inference.arguments.loading import SplitOptions, checked_options
from glgpt.inference.arguments.names import Names
from glgpt.inference.capture import Captures, RawTexture
from glgpt.inference.edits import Edits
from glgpt.inference.interventions import Interventions, edits_of
from glgpt.inference.model import Asked, LanguageModel
from glgpt.inference.stages.pipeline import Local, Pipeline
from glgpt.inference.stages.remote import RemoteStage
from glgpt.inference.stages.stage import Stage
from glgpt.models.activations import LOGITS
from glgpt.models.part import Part, checked_chain
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.text.tokenizer import Tokenizer, load_tokenizer
from glgpt.wire.client import Connection

HERE = "here"


def parse_plan(text: str) -> list[tuple[str, str]]:
    """Returns a plan such as `0-3@here,4-7@ws://a,8-11@ws://b` as (part, place) pairs. Raises ArgumentError if invalid.

    A part is written as in `Part.parse`; a comma inside a part (`embed,0-3@here`) belongs to the part.
    """
    found = re.findall(r"([^@]+)@(here|wss?://[^,\s]+)(?:,|$)", text)
    if not found or ",".join(f"{part}@{place}" for part, place in found) != text:
        example = "such as 0-3@here,4-7@ws://a:8043,8-11@ws://b:8043"
        raise ArgumentError(f"{written(text)} is not a plan; write blocks and where they run, {example}")
    return found


class SplitLanguageModel(LanguageModel):
    """A model of several stages; use `glgpt.load` with `rest` or `plan`.

    If hidden states are sent as f32, the model generates the same text as the unsplit model. Local stages load only
    their own tensors of the checkpoint. `traffic` returns the rows and times of each stage. Raises GlgptError for a
    server that cannot be reached, that refuses the connection, or that holds another model or part.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: Tokenizer | None = None,
        dtype: str | None = None,
        *,
        split: SplitOptions,
        context: int | None = None,
        **options: Any,
    ) -> None:
        self.config, self.tokenizer, self.dtype = checkpoint.config, tokenizer, dtype or default_dtype(checkpoint)
        self.formats = weight_formats(checkpoint, dtype)
        self.name, self.path = checkpoint.name, checkpoint.path
        self.eos_ids = end_of_text(self.path, self.config.vocab_size, tokenizer)
        self._closed, self._captures_of = False, dict[int, Captures]()
        self._limit = options.get("max_texture_memory")
        self._stages: list[Local | RemoteStage] = []
        self._connections: list[Connection] = []
        digest = model_digest(checkpoint)

        def remote(url: str, part: Part | None = None) -> RemoteStage:
            wanted = str(part) if part else None
            self._connections.append(Connection(url, token=split.token, wire=split.wire, model=digest, part=wanted))
            return RemoteStage(self._connections[-1], self.config, split.wire)

        try:
            places: list[tuple[Part, RemoteStage | None]]
            if split.plan is not None:
                parsed = [(Part.parse(part, self.config), place) for part, place in parse_plan(split.plan)]
                checked_chain([part for part, _ in parsed], self.config)
                places = [(part, None if place == HERE else remote(place, part)) for part, place in parsed]
            else:
                server = remote(str(split.rest), _rest_of(split.blocks, self.config))
                places = _around(server, split.blocks, self.config)
            context = _shared_context([stage for _, stage in places if stage], context)
            for part, stage in places:
                self._stages.append(stage or Local(Stage.load(checkpoint, part, dtype, context=context, **options)))
            self.max_context = min(context or self.config.n_positions, *(s.context for s in self._stages))
            self.config = self.config.with_context(self.max_context)
            self.decoder = Pipeline(
                self._stages, self.context, self._sizes(), self._check_open, speculate=split.speculate
            )
        except BaseException:
            self.close()
            raise
        self._decoder = self.decoder

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path | None = None, dtype: str | None = None, **options: Any
    ) -> SplitLanguageModel:
        """Loads the local stages of a checkpoint and connects to the servers; see `glgpt.load`."""
        options = checked_options(name_or_path, dtype, options)
        if not {"rest", "plan"} & options.keys():
            raise ArgumentError("a split model needs rest or plan, which say what runs on servers")
        with Checkpoint.open(name_or_path) as checkpoint:
            tokenizer = load_tokenizer(checkpoint.path, checkpoint.config.vocab_size)
            split = SplitOptions.taken_from(options)
            return cls(checkpoint, tokenizer, dtype, split=split, **options)

    def _sizes(self) -> tuple[int, ...]:
        """Returns the sizes of a prompt's chunks: those of the first local stage, or else those of the first server."""
        for stage in self._stages:
            if isinstance(stage, Local):
                return stage.stage.sizes
        return tuple(sorted({*self._connections[0].opened.sizes, 1}, reverse=True))

    # -- public -------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The parts and their places: (part, "here" or the server's address), in order."""
        return [(str(s.part), s.connection.url if isinstance(s, RemoteStage) else HERE) for s in self._stages]

    def traffic(self) -> list[dict[str, Any]]:
        """Returns the part, place, steps, rows and milliseconds of each stage.

        A row is a token, or the hidden state of a token. For servers, returns all fields of `wire.client.Traffic`.
        """
        found = []
        for (part, place), stage in zip(self.parts, self._stages, strict=True):
            if isinstance(stage, Local):
                did: dict[str, Any] = {"steps": stage.steps, "rows": stage.rows, "ms": stage.ms}
            else:
                did = asdict(stage.connection.traffic)
            found.append({"part": part, "place": place, **did})
        return found

    def _generated(self, edits: Edits, how: Asked) -> Iterator[int]:
        """Yields ids from the pipeline. Raises GlgptError if there are edits."""
        self._refuse(edits)
        return self.decoder.generate(*how)

    @staticmethod
    def _refuse(edits: Edits) -> None:
        if edits:
            raise GlgptError("a split model does not support interventions; load it without rest or plan")

    def run_with_cache(
        self,
        ids: Sequence[int],
        names: Names = None,
        *,
        interventions: Interventions = (),
    ) -> tuple[Floats, dict[str, Floats]]:
        """Returns what `run_with_cache` of a whole model returns; each stage captures the activations of its blocks.

        Raises GlgptError if there are interventions.
        """
        self._refuse(edits_of(self.config, interventions))
        x: Any
        x, asked, wanted = self._asked(ids, names)
        found: dict[str, Floats] = {}
        for at, stage in enumerate(self._stages):
            here = tuple(n for n in wanted if n in stage.part.activations(self.config) and n != LOGITS)
            if isinstance(stage, RemoteStage):
                x, arrays = stage.look(x, here)
            else:
                x, arrays = look(self._looking(at, stage.stage), x, here)
            found |= arrays
        found[LOGITS] = x
        return x, {n: found[n] for n in wanted if n in asked}

    def raw(self, ids: Sequence[int], names: Names) -> dict[str, list[RawTexture]]:
        """Raises GlgptError: the textures of remote stages are not on this machine."""
        raise GlgptError("the textures of a split model are not all on this machine; use run_with_cache")

    def _looking(self, at: int, stage: Stage) -> Captures:
        if at not in self._captures_of:
            self._captures_of[at] = stage.captures(self._limit)
        return self._captures_of[at]

    def _players(self) -> list[Player]:
        self._check_open()
        return [s.stage.player for s in self._stages if isinstance(s, Local)]

    def _check_open(self) -> None:
        if self._closed:
            raise GlgptError(f"{self.name} is closed; load it again")

    @property
    def texture_bytes(self) -> int:
        """Current texture memory of the local stages in bytes; 0 once the model is closed."""
        own = sum(s.stage.texture_bytes for s in self._stages if isinstance(s, Local))
        return 0 if self._closed else own + sum(c.nbytes for c in self._captures_of.values())

    def info(self) -> dict[str, Any]:
        """Returns the dtype, the parts and their places, and the local texture memory in bytes."""
        return {"dtype": str(self.formats), "parts": self.parts, "texture_bytes": self.texture_bytes}

    def release_captures(self) -> None:
        """Releases the local stages' textures used for capturing activations; they are allocated again when needed."""
        for captures in self._captures_of.values():
            captures.close()
        self._captures_of.clear()

    def close(self) -> None:
        """Releases all local GL objects and closes the connections. Closing twice is harmless."""
        self._closed = True
        self.release_captures()
        if self._template:
            self._template.renderer.close()
        for stage in self._stages:
            if isinstance(stage, Local):
                stage.stage.close()
        for connection in self._connections:
            connection.close()


def look(captures: Captures, x: Any, names: Sequence[str]) -> tuple[Floats, dict[str, Floats]]:
    """Runs a stage on all of x (ids or hidden states); returns hidden states or logits, and the named activations.

    The activations have their natural shapes: see `LanguageModel.run_with_cache`.
    """
    total, pieces, end = len(x), dict[str, list[Floats]](), list[Floats]()
    for chunk, name, raw in captures.play(x, [*names, captures.end]):
        matrix = raw.view.unpack(raw.texels)
        if name == captures.end:
            end.append(matrix[: chunk.valid])
        else:
            found = captures.config.activations[name].natural(matrix, chunk.start, chunk.valid, total)
            pieces.setdefault(name, []).append(found)
    return np.concatenate(end), {n: np.concatenate(p, axis=p[0].ndim - 2) for n, p in pieces.items()}


def _shared_context(servers: Sequence[RemoteStage], given: int | None) -> int | None:
    """Returns the context of all stages: `given`, or, if that is None, the smallest context of a server.

    Returns None if `given` is None and `servers` is empty. Raises ArgumentError if a server has fewer positions than
    the given context.
    """
    least = min(servers, key=lambda server: server.context, default=None)
    if least is None or given is None:
        return least.context if least else given
    if given > least.context:
        limit = f"the {least.context} positions of {least.connection.url}"
        raise ArgumentError(f"a context of {given} is beyond {limit}; lower --context, or raise the server's")
    return given


def _rest_of(blocks: tuple[int, int] | None, config: ModelConfig) -> Part | None:
    """Returns the part that a server must hold if this machine runs `blocks` = (first, end).

    Returns None if `blocks` does not determine that part: if it is None, does not start at block 0, or has all blocks.
    """
    if blocks is None or blocks[0] != 0 or not 0 < blocks[1] < config.n_layer:
        return None
    return Part(blocks[1], config.n_layer, False, True)


def _around(
    server: RemoteStage, blocks: tuple[int, int] | None, config: ModelConfig
) -> list[tuple[Part, RemoteStage | None]]:
    """Returns (part, server) for the local part before the server's, the server's part, and the local part after it.

    For a local part, the server is None; an empty part is omitted. Raises ArgumentError if `blocks` = (first, end) is
    given and the local parts have other blocks.
    """
    before, after = server.part.before(), server.part.after(config)
    if blocks is not None:
        own = [part.blocks for part in (before, after) if part]
        if range(*blocks) not in own or sum(map(len, own)) != len(range(*blocks)):
            url, first, end = server.connection.url, *blocks
            left = " and ".join(str(part) for part in (before, after) if part) or "nothing"
            leaves = f"{url} holds {server.part}, which leaves {left} to this machine, not blocks {first}-{end - 1}"
            raise ArgumentError(f"{leaves}; omit the option blocks, or start the server with other --blocks")
    places: list[tuple[Part, RemoteStage | None]] = [(before, None)] if before else []
    places.append((server.part, server))
    return places + ([(after, None)] if after else [])
