"""A GPT-2 on a device: loading, logits, generation, and every intermediate by name."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.gl.player import Player
from glgpt.inference import programs
from glgpt.inference.capture import Captures, RawTexture
from glgpt.inference.decoder import Decoder
from glgpt.inference.generation import Generation, Run, TokenStream
from glgpt.inference.sampling import NOT_FINITE, Sampler, whole
from glgpt.program.formats import FORMATS, Floats
from glgpt.text.tokenizer import Tokenizer, load_tokenizer
from glgpt.tuning.choice import DeviceSettings, as_dict

if TYPE_CHECKING:
    from glgpt.inference.stages.pipeline import Pipeline


class GPT2:
    """A GPT-2 that runs as fragment-shader passes; use `from_pretrained`. Closing it releases every GL object.

    It is used in the thread that loaded it, where its GL context is current; elsewhere GlgptError is raised.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: Tokenizer | None = None,
        dtype: str = "f32",
        *,
        settings: DeviceSettings | None = None,
        max_texture_memory: int | None = None,
        progress: programs.Progress | None = None,
    ) -> None:
        if dtype not in FORMATS:
            raise GlgptError(f"dtype {dtype!r} is not one of {', '.join(FORMATS)}")
        self.config, self.tokenizer, self.dtype = checkpoint.config, tokenizer, dtype
        self.name, self.path = checkpoint.name, checkpoint.path
        self.device, self.choice = (settings or DeviceSettings()).open()
        program = programs.fitting_program(
            checkpoint, self.device.limits, self.choice.kernel, dtype, max_texture_memory
        )
        self.player = Player(self.device, program, self.choice.options)
        self._decoder: Decoder | Pipeline = Decoder(self.player, self.config.n_positions, self._check_open)
        self._captures = Captures(self.player, self.config, self.choice.kernel, dtype, max_texture_memory)
        try:
            programs.load_weights(self.player, checkpoint, progress)
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path | None = None, dtype: str = "f32", **options: Any) -> GPT2:
        """Loads a checkpoint: a folder, a Hub name such as "gpt2", or None for the embedded Shakespeare model.

        `options`: `device` ("auto", "software", "gpu" or an EGL index), `kernel`, `fetch`, `storage` (each "auto" or
        a name from `glgpt info`), `max_texture_memory` in bytes, `progress` called with (bytes done, bytes in all).

        `rest="ws://…"`: a server (`glgpt split serve`) runs its blocks, and this machine the others, which alone are
        loaded; `blocks=(first, end)` says which those must be. `plan="0-3@here,4-7@ws://a,8-11@ws://b"` chains several.
        With them go `wire` ("f32", "f16" or "int8": how hidden states travel), `token` and `speculate`. The text is
        the unsplit model's.

        Raises GlgptError, naming the file and the tensor, for anything that cannot be loaded, before anything is drawn.
        """
        with Checkpoint.open(name_or_path) as checkpoint:
            tokenizer = load_tokenizer(checkpoint.path, checkpoint.config.vocab_size)
            if options.get("rest") is not None or options.get("plan") is not None:
                from glgpt.inference.stages.model import SplitGPT2

                return SplitGPT2(checkpoint, tokenizer, dtype, **options)
            settings = DeviceSettings.taken_from(options)
            return cls(checkpoint, tokenizer, dtype, settings=settings, **options)

    # -- public -------------------------------------------------------------------------------------------------

    def logits(self, ids: Sequence[int]) -> Floats:
        """Logits of every position, float32 `[T, vocab]`.

        Raises GlgptError for unusable ids, and where a logit is not a finite number (`run_with_cache` then shows which
        intermediate is the first that is not).
        """
        logits = self.run_with_cache(ids, ())[0]
        if not np.isfinite(logits).all():
            raise GlgptError(NOT_FINITE)
        return logits

    def run_with_cache(
        self, ids: Sequence[int], names: Iterable[str] | None = None
    ) -> tuple[Floats, dict[str, Floats]]:
        """Logits `[T, vocab]` and the intermediates of these dotted names (None: all of them).

        `attn.scores` (-inf above the diagonal) and `attn.pattern` are `[n_head, T, T]`, `attn.q`, `k` and `v`
        `[n_head, T, d_head]`, all others `[T, width]`. Raises GlgptError for unusable ids or an unknown name.
        """
        names = {names} if isinstance(names, str) else None if names is None else set(names)
        wanted = self._wanted(names)
        ids = self.check_ids(ids)
        total = len(ids)
        pieces: dict[str, list[Floats]] = {name: [] for name in wanted}
        for chunk, name, raw in self._captures.play(ids, wanted):
            matrix = raw.view.unpack(raw.texels)
            pieces[name].append(self.config.activations[name].natural(matrix, chunk.start, chunk.valid, total))
        joined = {n: np.concatenate(p, axis=p[0].ndim - 2) for n, p in pieces.items()}
        logits = joined["logits"]
        return logits, {n: joined[n] for n in wanted if names is None or n in names}

    def raw(self, ids: Sequence[int], names: Iterable[str]) -> dict[str, list[RawTexture]]:
        """The textures of these names exactly as they are in memory, one for each chunk of the prompt."""
        names = {names} if isinstance(names, str) else set(names)
        wanted = self._wanted(names)
        ids = self.check_ids(ids)
        found: dict[str, list[RawTexture]] = {name: [] for name in wanted}
        for _, name, raw in self._captures.play(ids, wanted):
            found[name].append(raw)
        return {n: found[n] for n in wanted if n in names}

    def generate(
        self,
        prompt: str | Sequence[int],
        tokens: int = 100,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Generation:
        """Continues a prompt, text or ids, by up to `tokens` tokens: iterate over the result for its text as it comes.

        Ends early at the tokenizer's end of text, a full context, or before any text of `stop`. Temperature 0 is
        greedy; without a `seed` a new one is drawn (see `Generation.seed`). Generations of one model may be
        interleaved: each refills the caches as it needs. Raises GlgptError for an unusable prompt or setting.
        """
        seed = secrets.randbelow(2**32) if seed is None else seed
        stream = self.generate_ids(prompt, tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return Generation(stream, self.tokenizer, seed, stop)

    def generate_ids(
        self,
        prompt: str | Sequence[int],
        tokens: int = 100,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> TokenStream:
        """As `generate`, but the result gives token ids; a character that spans tokens comes as its tokens."""
        ids = self.check_ids(self.encode(prompt) if isinstance(prompt, str) else prompt)
        if whole("tokens", tokens) < 0:
            raise GlgptError(f"tokens is {tokens}; it must be 0 or above")
        sampler, stats = Sampler(temperature, top_k, top_p, seed), Run(len(ids))
        eos = self.tokenizer.eos if self.tokenizer else None
        return TokenStream(self._decoder.generate(ids, tokens, sampler, eos, stats), stats)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with what the tokenizer puts before one.

        Raises GlgptError where the model has no tokenizer or the text is empty.
        """
        if self.tokenizer is None:
            raise GlgptError(f"{self.name} has no tokenizer files; give token ids instead")
        if not text:
            raise GlgptError("the prompt is empty; give at least one character")
        return self.tokenizer.prompt_prefix + self.tokenizer.encode(text)

    def check_ids(self, ids: Sequence[int]) -> list[int]:
        """The ids as a list of ints; refuses none, more than the context, and any outside the vocabulary."""
        self._check_open()
        try:
            ids = [operator.index(i) for i in ids]
        except TypeError as error:
            raise GlgptError(f"the prompt must be a sequence of whole-number ids: {error}") from error
        if not ids:
            raise GlgptError("the prompt is empty; give at least one token")
        if len(ids) > self.config.n_positions:
            raise GlgptError(
                f"the prompt has {len(ids)} tokens and the context of {self.name} holds {self.config.n_positions}; "
                "shorten it"
            )
        for position, i in enumerate(ids):
            if not 0 <= i < self.config.vocab_size:
                raise GlgptError(f"id {i} at position {position} is outside the vocabulary of {self.config.vocab_size}")
        return ids

    def _check_open(self) -> None:
        if not self.player.textures:
            raise GlgptError(f"{self.name} is closed; load it again")

    @property
    def activation_names(self) -> list[str]:
        """The dotted names of all activations, in the order they are computed."""
        return list(self.config.activations)

    @property
    def texture_bytes(self) -> int:
        """Texture memory of this model at present, in bytes; 0 once it is closed."""
        return self.player.program.nbytes() + self._captures.nbytes if self.player.textures else 0

    def info(self) -> dict[str, Any]:
        """What was chosen and what it takes: kernels, passes, bytes by role."""
        return programs.describe(self.player.program) | {"dtype": self.dtype, "choice": as_dict(self.choice)}

    def close(self) -> None:
        """Releases every GL object of this model. Closing twice is harmless."""
        self._captures.close()
        self.player.close()

    def __enter__(self) -> GPT2:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wanted(self, names: Iterable[str] | None) -> list[str]:
        known = list(self.config.activations)
        if names is None:
            return known
        asked = set(names)
        unknown = sorted(asked - set(known))
        if unknown:
            raise GlgptError(
                f"{unknown[0]!r} is not an activation of {self.name}; "
                f"they run from {known[0]}, {known[1]} to {known[-1]}"
            )
        return [n for n in known if n in asked or n == "logits"]
