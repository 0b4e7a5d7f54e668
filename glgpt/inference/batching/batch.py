"""Decodes several texts side by side: each weight is read once for all texts, and each text has its own position.

The texts share caches; each row of the caches holds the keys and values of one position. A step decodes one token of
each text and writes the keys and values of these tokens to adjacent free rows; a table maps each position of a text to
its row. Texts can therefore start, pause and continue at any step, and texts with the same beginning share the rows of
this beginning (as in Kwon et al. 2023, with blocks of one token).

A player plays the entries (named lists of passes) of a program. A state is a texture that keeps its contents between
entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from glgpt import ops
from glgpt.errors import GlgptError
from glgpt.gl.player import Player
from glgpt.gl.readback import Readback
from glgpt.inference.chunks import Chunk, Rows, upload_hidden
from glgpt.inference.decoder import Decoder
from glgpt.inference.generation import END
from glgpt.inference.sampling import Sampler, recorded
from glgpt.models.activations import LOGITS
from glgpt.models.network import Network, SideBySide
from glgpt.models.part import HIDDEN, Part
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.program.kernel import Kernel
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program
from glgpt.program.weight_formats import WeightFormats

SIZES = (1, 2, 4, ops.MAX_ROWS)  # numbers of texts that a step can be recorded for
ADOPTED = (128, 16)  # numbers of rows that the entries `adopt_N` copy from a prompt's caches
SPARE = 256  # additional rows of the caches, because ended texts leave gaps between the rows in use


def batch_program(
    config: ModelConfig,
    limits: Limits,
    kernel: Kernel,
    dtype: WeightFormats,
    height: int,
    logits: Layout | None,
    part: Part | None = None,
    sizes: Sequence[int] = SIZES,
) -> Program:
    """Records the entries that decode several texts: `decode_N`, `take_N`, `adopt_N` and `restore_1`.

    All entries share caches of `height` rows; `row` and `pos` are scalars that are given when an entry is played.
    `decode_N`, with N in `sizes`, computes one token of each of N texts. It reads the tokens from `token.N`, and the
    tokens' positions from `places.N`. `table.N` has the cache row of each position of each text. `decode_N` writes keys
    and values to the cache rows from `row` on, and the likeliest next tokens to `token.N`. Its output is `logits`, of
    shape `[N, vocab]`.

    The other entries exchange rows with a generation program (`inference.programs.generation_program`). `take_N` copies
    row `row` of `token.N` and of the logits to the states `token` and `logits` of the generation program, so that the
    generation program can draw a token. The argument `logits` is the layout of the state `logits`. `adopt_N` copies N
    rows of the generation program's caches, from `pos` on, to the shared rows from `row` on; `restore_1` copies the
    shared row `pos` to row `row` of the generation program's caches.

    If `part` (`Part`: a range of blocks) lacks the embedding, `decode_N` reads hidden states from the input `hidden.N`.
    If `part` lacks the head (the final norm and the logits), `logits` is None, the output of `decode_N` is `hidden`,
    and the program has no `take_N`.
    """
    rec = Recorder(limits)
    own = Network(rec, config, kernel, dtype, part=part)
    for size in sizes:
        network = Network(rec, config, kernel, dtype, batch=SideBySide(size, height), part=part)
        with rec.entry(f"decode_{size}"):
            network.decode()
        if logits is not None:
            with rec.entry(f"take_{size}"):
                ops.take_row(rec, rec.kept(f"logits.{size}"), rec.fixed("logits", logits, "state"))
                ops.take_row(rec, network.token, own.token)
    for size in ADOPTED:
        with rec.entry(f"adopt_{size}"):
            network.adopt(size, own)
    with rec.entry("restore_1"):
        own.adopt(1, network)
    return rec.program()


class Heap:
    """Counts the texts that use each row of the shared caches, and finds free rows."""

    def __init__(self, height: int) -> None:
        self.uses, self._next = np.zeros(height, np.int32), 0

    def take(self, count: int, used: int) -> int | None:
        """Returns the first of `count` adjacent free rows, and marks the first `used` of these rows as in use.

        Searches the rows after those that were taken last, then all rows from the beginning. Returns None if there are
        no `count` adjacent free rows.
        """
        first = self._next
        if first + count > len(self.uses) or self.uses[first : first + count].any():
            taken = np.concatenate([[0], np.cumsum(self.uses > 0)])
            starts = np.flatnonzero(taken[count:] == taken[:-count])
            if not len(starts):
                return None
            first = int(starts[int(np.searchsorted(starts, first)) % len(starts)])
        self.uses[first : first + used] += 1
        self._next = first + used
        return first

    def room(self, held: Iterable[int]) -> int:
        """Returns the length of the longest run of rows that are not in `held`."""
        uses = np.zeros(len(self.uses) + 2, np.bool_)
        uses[[0, -1, *(row + 1 for row in held)]] = True
        return int(np.diff(np.flatnonzero(uses)).max()) - 1

    def release(self, rows: Iterable[int]) -> None:
        """Subtracts one text from the count of each of these rows.

        If the rows that were taken last are free now, the next search begins with them.
        """
        np.subtract.at(self.uses, np.asarray(list(rows), np.int64), 1)
        held = np.flatnonzero(self.uses[: self._next])
        self._next = int(held[-1]) + 1 if len(held) else 0


@dataclass(eq=False)
class Member:
    """A text in the shared caches; `rows[i]` is the shared row of its position i."""

    rows: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Text(Member):
    """A text with its token ids; the shared caches hold all its rows, or none if they were evicted for other texts."""

    ids: list[int] = field(default_factory=list)


M = TypeVar("M", bound=Member)


class CacheLimitError(GlgptError):
    """Raised if shared caches would exceed the memory that the textures may take."""


class SharedCaches(ABC, Generic[M]):
    """Holds KV caches that texts share, and runs steps of up to eight texts with the weights of the player `main`.

    A text's results do not depend on the other texts of a step. `most` limits the total bytes of textures: those of the
    shared caches, those of `main`, and `others` (a number of bytes for the caller to set). `part` is the part of the
    model that `main` runs (None: the whole model).
    """

    def __init__(
        self,
        main: Player,
        config: ModelConfig,
        kernel: Kernel,
        dtype: WeightFormats,
        most: int | None,
        part: Part | None = None,
    ) -> None:
        self.main, self.config, self.kernel, self.dtype, self.most = main, config, kernel, dtype, most
        self.part, self.others = part or Part.whole(config), 0
        self.remedy = "generate fewer tokens or samples"  # for the message if the caches need too much memory
        self._player: Player | None = None
        self._heap = Heap(0)
        self._texts: dict[M, None] = {}  # texts with rows, least recently used first
        self._sent: tuple[tuple[M, ...], Floats] = ((), np.zeros((0, 0), np.float32))  # texts and table last uploaded
        self._last = self._count = 0  # size of the last step's entry, and number of texts in that step
        self._drawn = Readback(main, ("token",), ops.MAX_ROWS) if self.part.head else None

    # -- for subclasses -----------------------------------------------------------------------------------------

    @abstractmethod
    def refill(self, text: M, keep: Sequence[M]) -> None:
        """Adds the missing rows of a text to the shared caches, without evicting the texts in `keep`."""

    def lose(self, text: M) -> None:
        """Does nothing. A subclass may copy the rows of a text here, because the rows are evicted afterwards."""

    def before_draw(self) -> None:
        """Does nothing. A subclass may react here, because the state `token` of `main` is overwritten afterwards."""

    # -- memory -------------------------------------------------------------------------------------------------

    @property
    def most_rows(self) -> int:
        """Maximum number of rows of the shared caches."""
        return self.main.device.limits.max_texture_size // 16 * 16

    def height(self, rows: int) -> int:
        """Returns the number of rows that the shared caches get when `rows` are requested."""
        return min(self.most_rows, 1 << max(8, (rows - 1).bit_length()))

    def reserve(self, rows: int) -> None:
        """Gives the shared caches at least `rows` rows, or the maximum number of rows.

        If the caches grow, texts lose their rows, and are refilled when they are next used. Raises CacheLimitError if
        all textures together, with the larger caches, would exceed `most` bytes.
        """
        rows = self.height(rows)
        if rows <= len(self._heap.uses):
            return
        main, logits = self.main, None
        if self.part.head:
            view = main.program.views[LOGITS]
            logits = Layout(view.rows, view.cols, view.tiles, view.dtype)
        program = batch_program(self.config, main.device.limits, self.kernel, self.dtype, rows, logits, self.part)
        needed = self.others + main.program.nbytes() + self._own_bytes(program)
        if self.most is not None and needed > self.most:
            raise CacheLimitError(
                f"several texts at once need {needed / 2**20:.0f} MiB of textures and --max-texture-memory is "
                f"{self.most / 2**20:.0f} MiB; allow more, or {self.remedy}"
            )
        self.close()
        self._player = Player(main.device, program, main.options, main.shared() | main.shared("state"))
        self._heap = Heap(rows)

    def room(self, keep: Iterable[M]) -> int:
        """Returns how many adjacent rows further texts could use, if only the texts in `keep` keep their rows.

        Does not count the rows that the padding of steps and copies needs.
        """
        return self._heap.room(row for text in keep for row in text.rows) - ops.MAX_ROWS - ADOPTED[0]

    @property
    def nbytes(self) -> int:
        """Current texture memory in bytes, without the textures of `main`."""
        return self._own_bytes(self._player.program) if self._player else 0

    def _own_bytes(self, program: Program) -> int:
        main = self.main.program.textures
        return sum(t.nbytes for name, t in program.textures.items() if name not in main)

    def close(self) -> None:
        """Releases the shared caches."""
        for text in list(self._texts):
            self.lose(text)
            self._forget(text)
        self._heap = Heap(0)
        if self._player:
            self._player.close()
            self._player = None

    @property
    def player(self) -> Player:
        """The player that runs steps. Raises GlgptError before `reserve` allocates the caches, and after `close`."""
        if self._player is None:
            raise GlgptError("no shared caches exist yet; call reserve() first")
        return self._player

    # -- steps --------------------------------------------------------------------------------------------------

    def step(self, texts: Sequence[M], x: Rows) -> None:
        """Runs the next position of each text, and appends the cache row of this position to the text's `rows`.

        `x` holds a token for each text, or, for a part without the embedding, a hidden state. No text may occur twice.
        Afterwards, `logits` and `best` return the predictions. For a part without the head, `hidden` returns the hidden
        states instead.
        """
        size = next(n for n in SIZES if n >= len(texts))
        for text in texts:
            self.refill(text, texts)
            self._texts[text] = self._texts.pop(text, None)  # now the most recently used
        first = self._take(size, len(texts), texts)
        for i, text in enumerate(texts):
            text.rows.append(first + i)
        self._send(texts, x, size, first)
        self.player.play(f"decode_{size}", row=first)
        self._last, self._count = size, len(texts)

    def choose(self, samplers: Sequence[Sampler], steps: Sequence[int]) -> list[int | None]:
        """Returns, for each text i of the last step, the token that sampler i draws; None if its logits are not finite.

        `steps[i]` is the number of tokens that sampler i has drawn before. If sampler i adjusts logits or has a
        constraint, item i is the likeliest token instead.
        """
        main, drawn = self.main, [i for i, s in enumerate(samplers) if s.entry and not s.matcher and not s.adjusts]
        found = self.best()
        if self._drawn is not None:
            self._drawn.drop()  # discards readbacks that a failed call left
        if not drawn or self._drawn is None:
            return found
        self.before_draw()
        for i in drawn:
            self.player.play(f"take_{self._last}", row=i)
            main.play(samplers[i].entry or "", **samplers[i].scalars(steps[i], self.config.vocab_size))
            self._drawn.start()
        for i in drawn:
            token, _, _, undecided = self._drawn.take()[0][0, 0, 0]
            if found[i] is not None:
                found[i] = samplers[i].choose(self.logits()[i], steps[i]) if undecided else int(token)
        return found

    def best(self) -> list[int | None]:
        """Returns, for each text of the last step, the likeliest next token; None if the logits are not finite."""
        found = self.player.read(f"token.{self._last}")[0, : self._count, 0]
        return [None if broken else int(token) for token, _, broken, _ in found]

    def logits(self) -> Floats:
        """Returns the logits of the last step, `[texts, vocab]`."""
        return self._read(LOGITS)

    def hidden(self) -> Floats:
        """Returns the hidden state of each text of the last step, `[texts, n_embd]`."""
        return self._read(HIDDEN)

    def _read(self, name: str) -> Floats:
        view = self.player.entry(f"decode_{self._last}").outputs[name]
        found: Floats = view.unpack(self.player.read(view.texture))[: self._count]
        return found

    # -- caches -------------------------------------------------------------------------------------------------

    def cut(self, text: M, held: int) -> None:
        """Discards the rows of a text after its first `held` rows."""
        self._heap.release(text.rows[held:])
        del text.rows[held:]
        self._sent = ((), self._sent[1])
        if not text.rows:
            self._texts.pop(text, None)

    def _forget(self, text: M) -> None:
        self.cut(text, 0)

    def _take(self, count: int, used: int, keep: Sequence[M]) -> int:
        """Returns the first of `count` adjacent free rows and takes the first `used` of these rows; may evict texts.

        Evicts as many texts as necessary, the least recently used first, but no text in `keep`. Raises GlgptError if
        there are still not enough adjacent free rows.
        """
        while (first := self._heap.take(count, used)) is None:
            idle = next((text for text in self._texts if text not in keep), None)
            if idle is None:
                raise GlgptError(f"the texts fill all {len(self._heap.uses)} rows of their caches; use fewer texts")
            self.lose(idle)
            self._forget(idle)
        return first

    def adopt(self, texts: Sequence[M], total: int, keep: Sequence[M] = (), player: Player | None = None) -> None:
        """Copies the rows of the first `total` positions from separate caches to shared rows for all of `texts`.

        The first `total` ids of all `texts` must be equal. Rows that `texts[0]` already has in the shared caches are
        not copied. The rows come from the caches of `main`, or, with `player`, from the caches that `player` uses.
        Texts in `keep` are not evicted.
        """
        rows, player = texts[0].rows, player or self.player
        known = len(rows)
        while len(rows) < total:
            size = next((n for n in ADOPTED if n <= total - len(rows)), ADOPTED[-1])
            valid = min(size, total - len(rows))
            first = self._take(size, valid, keep)
            player.play(f"adopt_{size}", pos=len(rows), row=first)
            rows += range(first, first + valid)
        self._heap.uses[rows[known:]] += len(texts) - 1
        for text in texts:
            text.rows = list(rows)
            self._texts[text] = None
        self._sent = ((), self._sent[1])

    def _send(self, texts: Sequence[M], x: Rows, size: int, first: int) -> None:
        """Uploads a step's inputs: tokens or hidden states, positions, and the table of rows.

        A table also predicts the rows of later steps with the same texts. It is not uploaded again while the
        predictions are right.
        """
        player, table = self.player, self._sent[1]
        ids, places = np.zeros((2, size, 1, 4), np.float32)
        if self.part.embed:
            ids[: len(texts), 0, 0] = x
            player.write(f"token.{size}", 0, ids)
        else:
            upload_hidden(player, np.asarray(x, np.float32), size)
        places[:, 0, 0] = -1  # marks rows of the step without a text
        places[: len(texts), 0, 0] = [len(text.rows) - 1 for text in texts]
        player.write(f"places.{size}", 0, places)
        foreseen = self._sent[0] == tuple(texts) and len(table) == size
        if not foreseen or any(table[i, len(text.rows) - 1] != text.rows[-1] for i, text in enumerate(texts)):
            table = np.zeros((size, player.program.textures[f"table.{size}"].width * 4), np.float32)
            for i, text in enumerate(texts):
                table[i, : len(text.rows)] = text.rows
                table[i, len(text.rows) :] = first + i + len(texts) * np.arange(1, table.shape[1] - len(text.rows) + 1)
            np.minimum(table, len(self._heap.uses) - 1, out=table)
            player.write(f"table.{size}", 0, table.reshape(size, -1, 4))
        self._sent = (tuple(texts), table)


class BatchDecoder(SharedCaches[Text]):
    """Decodes up to eight texts of one model at once, with the weights of the player of `decoder`.

    `begin` adds texts that have the same prompt, `append` decodes one token of each text given to it, and `end` removes
    a text. A call of `append` may be given any of the texts, in any order. If the rows of a text were evicted, they are
    computed again from its ids.
    """

    def __init__(
        self, decoder: Decoder, config: ModelConfig, kernel: Kernel, dtype: WeightFormats, most: int | None
    ) -> None:
        super().__init__(decoder.player, config, kernel, dtype, most)
        self.decoder = decoder

    def begin(
        self,
        ids: Sequence[int],
        samplers: Sequence[Sampler],
        steps: Sequence[int],
        chunks: Sequence[Chunk] | None = None,
    ) -> tuple[list[Text], list[int | None]]:
        """Returns a text for each sampler, and the token that each sampler chooses next: see `Decoder.first`.

        The texts share the rows of `ids`. `steps` are the numbers of tokens that the samplers have drawn before;
        `chunks` is passed to `Decoder.first`.
        """
        tokens = self.decoder.first(list(ids), samplers, steps, chunks)
        texts = [Text(ids=list(ids)) for _ in samplers]
        self.adopt(texts, len(ids))
        return texts, tokens

    def append(self, texts: Sequence[Text], tokens: Sequence[int]) -> None:
        """Appends a token to each text and decodes the tokens. No text may occur twice."""
        self.step(texts, tokens)
        for text, token in zip(texts, tokens, strict=True):
            text.ids.append(token)

    def check_guesses(self, text: Text, tokens: Sequence[int], sampler: Sampler, step: int) -> list[int | None]:
        """Appends `tokens[0]` and the correct guesses to a text: the tokens of `tokens[1:]` before the first wrong one.

        Returns the tokens that the sampler draws after `step` earlier draws: the correct guesses, and one more token.
        The last token is None if its logits are not finite. The logits of each token equal those of a separate step bit
        for bit, so guesses do not change the text. The only exception is a GPU that adds up products by blending
        (`Kernel.blends`): the last bits may differ.
        """
        held = len(self._placed(text, tokens))
        chosen = self.choose([sampler] * len(tokens), range(step, step + len(tokens)))
        right = 0
        while right + 1 < len(tokens) and chosen[right] == tokens[right + 1]:
            right += 1
        self.cut(text, held + right + 1)
        text.ids += tokens[: right + 1]
        return chosen[: right + 1]

    def _placed(self, text: Text, tokens: Sequence[int]) -> list[int]:
        """Runs `tokens` at the next positions of one text; returns the shared rows that the text had before."""
        self.refill(text, [text])
        self._texts[text] = self._texts.pop(text, None)
        held, count, player = list(text.rows), len(tokens), self.player
        size = next(n for n in SIZES if n >= count)
        first = self._take(size, count, [text])
        text.rows += range(first, first + count)
        ids, places = np.zeros((2, size, 1, 4), np.float32)
        ids[:count, 0, 0] = tokens
        places[:, 0, 0] = -1  # marks rows of the step without a token
        places[:count, 0, 0] = range(len(held), len(held) + count)
        table = np.zeros((size, player.program.textures[f"table.{size}"].width * 4), np.float32)
        table[:, : len(text.rows)] = text.rows
        player.write(f"token.{size}", 0, ids)
        player.write(f"places.{size}", 0, places)
        player.write(f"table.{size}", 0, table.reshape(size, -1, 4))
        self._sent = ((), self._sent[1])
        player.play(f"decode_{size}", row=first)
        self._last, self._count = size, count
        return held

    def following(self, samplers: Sequence[Sampler], steps: Sequence[int], texts: Sequence[Text]) -> list[int | None]:
        """Returns, for each text of the last step, the next token; END if the text is complete; None after an error.

        The error is `Sampler.error`; if `Sampler.error` is None, the logits are not finite. Unlike `choose`, supports
        samplers that adjust logits or have a constraint. The caller must pass each token to its sampler's matcher.
        """
        found = self.choose(samplers, steps)
        drawn = self._drawn
        begun: list[int] = []  # indices of the texts for which the device is drawing a token
        for i, sampler in enumerate(samplers):
            if found[i] is None or not (sampler.matcher or sampler.adjusts):
                continue
            with recorded(sampler, found, i):
                if sampler.matcher and sampler.matcher.complete:
                    found[i] = END
                elif sampler.adjusts or not sampler.matcher or drawn is None:
                    found[i] = self._on_host(i, sampler, steps[i], texts[i])
                else:
                    self.before_draw()
                    self.player.play(f"take_{self._last}", row=i)
                    self.decoder.masked.play(sampler, sampler.matcher, steps[i], self.config.vocab_size)
                    drawn.start()
                    begun.append(i)
        for i in begun:
            assert drawn is not None
            token, _, _, undecided = drawn.take()[0][0, 0, 0]
            with recorded(samplers[i], found, i):
                found[i] = self._on_host(i, samplers[i], steps[i], texts[i]) if undecided else int(token)
        return found

    def _on_host(self, row: int, sampler: Sampler, step: int, text: Text) -> int:
        return sampler.choose(sampler.adjusted(self.logits()[row], text.ids), step)

    def end(self, text: Text) -> None:
        """Removes a text and frees its rows."""
        self.cut(text, 0)

    def refill(self, text: Text, keep: Sequence[Text]) -> None:
        """Computes the rows of an evicted text again, from its ids."""
        if not text.rows:
            self.decoder.first(text.ids, (), ())
            self.adopt([text], len(text.ids), keep)

    def before_draw(self) -> None:
        """Makes the decoder's generations refill their caches: the state `token` that they use is overwritten."""
        self.decoder.interrupt()
