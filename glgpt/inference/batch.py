"""Texts decoded side by side: each weight is read once for all of them, and every text is at a position of its own.

The texts share caches of keys and values. A step writes the new rows of all texts below each other, wherever as many
rows are free, and a table says where each position of a text is. So texts may come, pause and go at any step, and
those with the same beginning share its rows (after Kwon et al. 2023, with blocks of one token).
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
from glgpt.inference.chunks import Rows, upload_hidden
from glgpt.inference.decoder import Decoder
from glgpt.inference.sampling import Sampler
from glgpt.models.network import SideBySide
from glgpt.models.part import HIDDEN, Part
from glgpt.models.spec import LOGITS, ModelConfig
from glgpt.program.formats import Floats
from glgpt.program.kernel import Kernel
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program

SIZES = (1, 2, 4, ops.MOST_ROWS)  # texts of a step that entries are recorded for
ADOPTED = (128, 16)  # rows that one pass copies from a prompt's caches
SPARE = 256  # rows beyond what texts need, so that those of ended ones may lie between


def batch_program(
    config: ModelConfig,
    limits: Limits,
    kernel: Kernel,
    dtype: str,
    height: int,
    logits: Layout | None,
    part: Part | None = None,
    sizes: Sequence[int] = SIZES,
) -> Program:
    """Entries `decode_N` (a row of each of N texts), `take_N` (one of their rows of logits), `adopt_N` and `restore_1`.

    N of `decode_N` and `take_N` are the `sizes`. They share caches of `height` rows. `decode_N` takes tokens from
    `token.N`, positions from `places.N`, where the keys are from `table.N`, and writes keys and values to rows `row`..;
    it leaves the best tokens in `token.N` and lists `logits` `[N, vocab]`. `take_N` copies row `row` of both to the
    states `token` and `logits` of a generation program, of the layout `logits`, which may then draw from them.
    `adopt_N` copies N rows `pos`.. of its caches to rows `row`.., and `restore_1` one back.

    Of a part of the model: without the embedding, `decode_N` takes hidden states in the input `hidden.N`; without the
    head, where `logits` is None, it lists `hidden`, and there is no `take_N`.
    """
    rec = Recorder(limits)
    own = config.network(rec, kernel, dtype, part=part)
    for size in sizes:
        network = config.network(rec, kernel, dtype, batch=SideBySide(size, height), part=part)
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
    """Which rows of the shared caches are in use, by how many texts."""

    def __init__(self, height: int) -> None:
        self.uses, self._next = np.zeros(height, np.int32), 0

    def take(self, count: int, used: int) -> int | None:
        """The first of `count` free rows below each other, of which `used` are now in use; None: there are none."""
        first = self._next
        if first + count > len(self.uses) or self.uses[first : first + count].any():
            taken = np.concatenate([[0], np.cumsum(self.uses > 0)])
            starts = np.flatnonzero(taken[count:] == taken[:-count])
            if not len(starts):
                return None
            first = int(starts[min(int(np.searchsorted(starts, first)), len(starts) - 1)])
        self.uses[first : first + used] += 1
        self._next = first + used
        return first

    def room(self) -> int:
        """The most free rows that are below each other."""
        ends = np.flatnonzero(np.concatenate([[1], self.uses, [1]]))
        return int(np.diff(ends).max()) - 1

    def release(self, rows: Iterable[int]) -> None:
        """One text less uses these rows."""
        np.subtract.at(self.uses, np.asarray(list(rows), np.int64), 1)


@dataclass(eq=False)
class Member:
    """A text of which the shared caches hold some first rows; `rows` says where."""

    rows: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Text(Member):
    """Token ids, of which the caches hold all, or none where others needed the rows."""

    ids: list[int] = field(default_factory=list)


M = TypeVar("M", bound=Member)


class SharedCaches(ABC, Generic[M]):
    """Caches that several texts share, and steps of up to eight of them over the weights of the player `main`.

    A text's results do not depend on its neighbours. `most` bounds all textures, in bytes.
    """

    def __init__(
        self, main: Player, config: ModelConfig, kernel: Kernel, dtype: str, most: int | None, part: Part | None = None
    ) -> None:
        self.main, self.config, self.kernel, self.dtype, self.most = main, config, kernel, dtype, most
        self.part = part or Part.whole(config)
        self._player: Player | None = None
        self._heap = Heap(0)
        self._texts: dict[M, None] = {}  # that have rows, the one used least recently first
        self._sent: tuple[tuple[M, ...], Floats] = ((), np.zeros((0, 0), np.float32))  # what the table holds
        self._last = self._count = 0  # the last step's entry, and its texts
        self._drawn = Readback(main, ("token",), ops.MOST_ROWS) if self.part.head else None

    # -- what texts are -----------------------------------------------------------------------------------------

    @abstractmethod
    def refill(self, text: M, keep: Sequence[M]) -> None:
        """Adopts the rows of a text that the shared caches lack; those of `keep` stay."""

    def lose(self, text: M) -> None:
        """Others need the rows of a text, which are still there."""

    def drew(self) -> None:
        """The state `token` of `main` is another now."""

    # -- memory -------------------------------------------------------------------------------------------------

    @property
    def most_rows(self) -> int:
        """The most rows that the shared caches can have."""
        return self.main.device.limits.max_texture_size // 16 * 16

    def height(self, rows: int) -> int:
        """The rows that the shared caches get where so many are asked for."""
        return min(self.most_rows, 1 << max(8, (rows - 1).bit_length()))

    def reserve(self, rows: int) -> None:
        """Makes the shared caches at least `rows` high, or as high as they can be. Texts are then refilled.

        Raises GlgptError where that takes more than `most` bytes of textures.
        """
        rows = self.height(rows)
        if rows <= len(self._heap.uses):
            return
        main, logits = self.main, None
        if self.part.head:
            view = main.program.views[LOGITS]
            logits = Layout(view.rows, view.cols, view.tiles, view.dtype)
        program = batch_program(self.config, main.device.limits, self.kernel, self.dtype, rows, logits, self.part)
        needed = main.program.nbytes() + self._own_bytes(program)
        if self.most is not None and needed > self.most:
            raise GlgptError(
                f"several texts at once take {needed / 2**20:.0f} MiB of textures and --max-texture-memory is "
                f"{self.most / 2**20:.0f} MiB; allow more, or generate fewer tokens or samples"
            )
        self.close()
        self._player = Player(main.device, program, main.options, main.shared() | main.shared("state"))
        self._heap = Heap(rows)

    @property
    def room(self) -> int:
        """Rows of the shared caches that texts can still take, at any number of texts a step."""
        return self._heap.room() - ops.MOST_ROWS - ADOPTED[0]

    @property
    def nbytes(self) -> int:
        """Texture memory at present, in bytes, beyond the model's own."""
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
        """What plays the steps. Raises GlgptError before anything was reserved."""
        if self._player is None:
            raise GlgptError("no caches were reserved for several texts")
        return self._player

    # -- steps --------------------------------------------------------------------------------------------------

    def step(self, texts: Sequence[M], x: Rows) -> None:
        """Runs a row of each text, no text twice: a token, or for a part without the embedding its hidden state.

        What may follow then is in `logits` and `best`, or for a part without the head in `hidden`.
        """
        size = next(n for n in SIZES if n >= len(texts))
        for text in texts:
            self.refill(text, texts)
            self._texts[text] = self._texts.pop(text, None)  # used last
        first = self._take(size, len(texts), texts)
        for i, text in enumerate(texts):
            text.rows.append(first + i)
        self._send(texts, x, size, first)
        self.player.play(f"decode_{size}", row=first)
        self._last, self._count = size, len(texts)

    def choose(self, samplers: Sequence[Sampler], steps: Sequence[int]) -> list[int | None]:
        """A token behind each text of the last step, chosen by its sampler for its step; None as in `best`."""
        main, drawn = self.main, [i for i, sampler in enumerate(samplers) if sampler.entry]
        found = self.best()
        if not drawn or self._drawn is None:
            return found
        self._drawn.drop()  # copies that a failed call left
        for i in drawn:
            self.player.play(f"take_{self._last}", row=i)
            main.play(samplers[i].entry or "", **samplers[i].scalars(steps[i], self.config.vocab_size))
            self._drawn.start()
        self.drew()
        for i in drawn:
            token, _, _, undecided = self._drawn.take()[0][0, 0, 0]
            if found[i] is not None:
                found[i] = samplers[i].choose(self.logits()[i], steps[i]) if undecided else int(token)
        return found

    def best(self) -> list[int | None]:
        """The likeliest token behind each text of the last step; None where its logits are not finite."""
        found = self.player.read(f"token.{self._last}")[0, : self._count, 0]
        return [None if broken else int(token) for token, _, broken, _ in found]

    def logits(self) -> Floats:
        """The logits behind each text of the last step, `[texts, vocab]`."""
        return self._read(LOGITS)

    def hidden(self) -> Floats:
        """The hidden state of each text of the last step, `[texts, n_embd]`."""
        return self._read(HIDDEN)

    def _read(self, name: str) -> Floats:
        view = self.player.entry(f"decode_{self._last}").outputs[name]
        found: Floats = view.unpack(self.player.read(view.texture))[: self._count]
        return found

    # -- caches -------------------------------------------------------------------------------------------------

    def cut(self, text: M, held: int) -> None:
        """Forgets the rows of a text behind its first `held`."""
        self._heap.release(text.rows[held:])
        del text.rows[held:]
        self._sent = ((), self._sent[1])
        if not text.rows:
            self._texts.pop(text, None)

    def _forget(self, text: M) -> None:
        self.cut(text, 0)

    def _take(self, count: int, used: int, keep: Sequence[M]) -> int:
        """`count` free rows, of which `used` are taken, if need be from texts that were not used for long."""
        while (first := self._heap.take(count, used)) is None:
            idle = next((text for text in self._texts if text not in keep), None)
            if idle is None:
                raise GlgptError(f"the texts fill all {len(self._heap.uses)} rows of their caches; use fewer at once")
            self.lose(idle)
            self._forget(idle)
        return first

    def adopt(self, texts: Sequence[M], total: int, keep: Sequence[M] = (), player: Player | None = None) -> None:
        """Copies rows up to `total` of a text's own caches to rows that these texts, which have the same, then share.

        `player` plays the entries of this one's over those caches, where they are not `main`'s.
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
        """Uploads what a step needs to know: rows, positions, and where the keys are unless it was foreseen."""
        player, table = self.player, self._sent[1]
        ids, places = np.zeros((2, size, 1, 4), np.float32)
        if self.part.embed:
            ids[: len(texts), 0, 0] = x
            player.write(f"token.{size}", 0, ids)
        else:
            upload_hidden(player, np.asarray(x, np.float32), size)
        places[:, 0, 0] = -1  # of no text
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
    """Decodes up to eight texts of one model at once, over the weights of its player.

    `begin` takes prompts in, `append` decodes a token of each text given to it, in any order and number, and `end`
    forgets one. Texts whose rows others needed are read in again.
    """

    def __init__(self, decoder: Decoder, config: ModelConfig, kernel: Kernel, dtype: str, most: int | None) -> None:
        super().__init__(decoder.player, config, kernel, dtype, most)
        self.decoder = decoder

    def begin(
        self, ids: Sequence[int], samplers: Sequence[Sampler], steps: Sequence[int]
    ) -> tuple[list[Text], list[int]]:
        """A text for each sampler that begins with `ids`, whose rows they share, and the tokens they choose next.

        `steps` says how many tokens each has drawn before.
        """
        tokens = self.decoder.first(list(ids), samplers, steps)
        texts = [Text(ids=list(ids)) for _ in samplers]
        self.adopt(texts, len(ids))
        return texts, tokens

    def append(self, texts: Sequence[Text], tokens: Sequence[int]) -> None:
        """Appends a token to each text, no text twice, and decodes it."""
        self.step(texts, tokens)
        for text, token in zip(texts, tokens, strict=True):
            text.ids.append(token)

    def end(self, text: Text) -> None:
        """Forgets a text."""
        self.cut(text, 0)

    def refill(self, text: Text, keep: Sequence[Text]) -> None:
        """Reads a text in again whose rows others needed."""
        if not text.rows:
            self.decoder.first(text.ids, (), ())
            self.adopt([text], len(text.ids), keep)

    def drew(self) -> None:
        """The decoder's token is another now."""
        self.decoder.forget()
