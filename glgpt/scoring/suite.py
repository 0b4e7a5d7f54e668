"""Scores a model: computes and formats everything that `glgpt eval --suite` prints.

The page's Score step computes its results with `viewer/src/training/score.ts` instead.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import FileError, GlgptError, quoted
from glgpt.inference.model import LanguageModel
from glgpt.scoring.ngrams import baselines
from glgpt.scoring.predictions import Figures, Predictions, chance, figures, predict, targets_of
from glgpt.scoring.samples import Copies, copies
from glgpt.scoring.task import Answers, answers, is_task, questions
from glgpt.system.files import read_text
from glgpt.text.dataset import Data, Ids, check_length, data_key, fixed_windows, load_data
from glgpt.text.files import Text
from glgpt.text.tokenizer import Tokenizer
from glgpt.text.tokenizer_training import identity
from glgpt.training.records import Record, validated
from glgpt.training.run_folder import RECORD

MAX_TOKENS = 8192  # default for the maximum number of scored tokens
EMBEDDED_TOKENS = 2048  # maximum tokens on which the embedded model is scored
HEAD = 1 << 16  # the embedded model is scored on this many characters at the beginning of the text
WRITTEN = 512  # tokens of the sample that the model generates
TEMPERATURE = 0.8
Progress = Callable[[str, int, int], None]  # current task, amount of its work that is done, total amount


@dataclass(frozen=True)
class Score:
    """The metrics of each predictor on held-back text (the model is the first), and a sample that the model wrote."""

    model: str
    window: int
    tokens: int
    bytes: int
    figures: tuple[Figures, ...]
    sample: str
    copies: Copies | None  # None without a training text
    task: Answers | None  # None if the text is not a toy task (see `task.is_task`), or if no line can be scored

    def as_json(self) -> dict[str, Any]:
        """Returns the score as data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Texts:
    """The texts for scoring: the held-back text and, if known, the training text."""

    held: Text
    train: Text | None


def texts_of_run(folder: Path) -> Texts:
    """Returns the training text and the held-back text of a run.

    Raises FileError if the folder is not a run, if the run has no held-back text or was not trained on files, or if
    these files cannot be read or have changed.
    """
    shown = quoted(folder, 300)
    if not (folder / RECORD).is_file():
        raise FileError(f"{shown} is not a training run: it has no {RECORD}; give a text and --model")
    record = validated(Record, read_text(folder / RECORD), f"{quoted(folder / RECORD, 300)} is damaged")
    if not record.files:
        raise FileError(f"{shown} was not trained on files; give the text and --model")
    if not record.settings.validation:
        raise FileError(f"{shown} has no held-back text to score; give a text and --model")
    try:
        text = Text.of_files(record.files)
    except OSError as error:
        file, why = quoted(error.filename, 300), (error.strerror or "").lower()
        raise FileError(f"{file}, the text of {shown}, cannot be read: {why}; give the text and --model") from None
    if data_key(text, record.settings.validation, record.vocab_size, record.tokenizer) != record.data:
        changed = f"{quoted(text.name, 300)} is not the text that {shown} was trained on"
        raise FileError(f"{changed}: restore its files, or give a text and --model")
    train, held = text.split(record.settings.validation)
    return Texts(held, train)


def score(
    model: LanguageModel,
    texts: Texts,
    *,
    tokens: int = MAX_TOKENS,
    embedded: LanguageModel | None = None,
    progress: Progress | None = None,
) -> Score:
    """Scores a model and, for comparison, chance, n-gram models of the training text, and `embedded`.

    Scores windows of `LanguageModel.context` tokens that are spread evenly over the text: as many windows as have at
    most `tokens` tokens in total (0: the whole text), but at least one. For chance, all tokens are equally likely.
    `embedded` is the small model that is part of glgpt (None: not scored). Raises GlgptError if the model has no
    tokenizer, or the text is shorter than a window.
    """
    report = progress or (lambda *_: None)
    tokenizer = tokenizer_of(model)
    data = _tokenised(texts, model, tokenizer, report)
    ids, context = data.validation, model.context
    check_length(ids, context, "held-back")
    first = _windows(ids, context, tokens)
    targets = targets_of(first, context)
    size = _size(tokenizer, ids, targets)
    found = predict(model, ids, first, context, _part(report, "predicting"))
    rows = [figures("model", found, size), chance(tokenizer.vocab_size, len(targets), size)]
    if len(data.train):
        counting = _part(report, "counting")
        n_grams = baselines(data.train, tokenizer.vocab_size, ids, targets, counting)
        rows += [figures(name, n_gram, size) for name, n_gram in n_grams.items()]
    if embedded is not None and (other := _embedded(embedded, texts.held, report)):
        rows.append(other)
    sample = write(model, _part(report, "writing"))
    copied = copies(sample, _pieces(texts.train, report)) if texts.train else None
    return Score(
        model.name, context, len(targets), size, tuple(rows), sample, copied, _task(texts, tokenizer, ids, first, found)
    )


def tokenizer_of(model: LanguageModel) -> Tokenizer:
    """Returns the model's tokenizer. Raises GlgptError if it has none."""
    if model.tokenizer is None:
        raise GlgptError(f"{model.name} has no tokenizer, so text cannot be scored; add vocab.json and merges.txt")
    return model.tokenizer


def _tokenised(texts: Texts, model: LanguageModel, tokenizer: Tokenizer, report: Progress) -> Data:
    show, who = _part(report, "tokenising"), identity(model.path)
    held = load_data(texts.held, 0, tokenizer, who, show)
    train = load_data(texts.train, 0, tokenizer, who, show).train if texts.train else np.zeros(0, np.uint16)
    return Data(train, held.train, held.key)


def _windows(ids: Ids, context: int, tokens: int) -> NDArray[np.int64]:
    return fixed_windows(ids, context, tokens or len(ids))


def _size(tokenizer: Tokenizer, ids: Ids, targets: NDArray[np.int64]) -> int:
    lengths = np.array([len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)])
    return int(lengths[ids[targets]].sum())


def _part(report: Progress, what: str) -> Callable[[int, int], None]:
    return lambda done, total: report(what, done, total)


def _embedded(model: LanguageModel, text: Text, report: Progress) -> Figures | None:
    """Scores the embedded model on the text's beginning; returns None if the beginning has fewer than 2 tokens.

    The embedded model and the scored model have different tokens, so only their bits per byte can be compared.
    """
    tokenizer, head = tokenizer_of(model), ""
    for piece, _ in text.pieces():
        head += piece
        if len(head) >= HEAD:
            break
    ids = np.array(tokenizer.encode(head[:HEAD]))
    if len(ids) < 2:
        return None
    context = min(model.context, len(ids) - 1)
    first = _windows(ids, context, EMBEDDED_TOKENS)
    found = predict(model, ids, first, context, _part(report, "predicting with the embedded model"))
    return figures("embedded", found, _size(tokenizer, ids, targets_of(first, context)))


def write(model: LanguageModel, progress: Callable[[int, int], None] | None = None, tokens: int = WRITTEN) -> str:
    """Generates a sample that is the same each time. When the context is full, continues from its last half."""
    tokenizer, context = tokenizer_of(model), model.context
    try:
        ids = tokenizer.encode("\n")
    except GlgptError:  # the vocabulary has no newline
        ids = [0]
    given = len(ids)
    while len(ids) - given < tokens:
        window = ids[-max(1, context // 2) :]
        wanted = max(1, min(tokens - (len(ids) - given), context - len(window)))
        new = list(model.generate_ids(window, wanted, temperature=TEMPERATURE, seed=len(ids)))
        ids += new
        if progress:
            progress(len(ids) - given, tokens)
        if len(new) < wanted:
            break  # the model ended its text
    return tokenizer.decode(ids[given:])


def _pieces(text: Text, report: Progress) -> Iterator[str]:
    for piece, done in text.pieces():
        yield piece
        report("looking for copies", done, text.size)


def _task(texts: Texts, tokenizer: Tokenizer, ids: Ids, first: Any, found: Predictions) -> Answers | None:
    head = next((texts.train or texts.held).pieces(), ("", 0))[0]
    if not is_task(head if texts.train else head[head.find("\n") + 1 :]):  # held-back text may begin within a line
        return None
    seen = questions(piece for piece, _ in texts.train.pieces(blanks="\n")) if texts.train else set()
    context = len(found.ranks) // len(first)
    hits = (found.ranks == 0).reshape(len(first), context)

    def windows() -> Iterator[tuple[list[bytes], NDArray[np.bool_]]]:
        for start, hit in zip(map(int, first), hits, strict=True):
            yield [tokenizer.token_bytes(int(i)) for i in ids[start : start + context + 1]], hit

    return answers(windows(), seen)


COLUMNS = ("predictor", "nats_per_token", "perplexity", "bits_per_byte", "top_1", "top_5", "calibration_error")


def as_csv(found: Score) -> str:
    """Returns the score as CSV, a line per predictor. Only the model's line has metrics of the sample and the task."""
    own = {}
    if found.copies:
        own = asdict(found.copies)
    if found.task:
        own["exact_match"] = found.task.exact_match
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *own])
    for row in found.figures:
        values = [row.name, *(getattr(row, name) for name in COLUMNS[1:])]
        writer.writerow([*values, *(own.values() if row.name == "model" else [None] * len(own))])
    return text.getvalue()


def render(found: Score) -> str:
    """Returns the score as a table for the terminal."""
    lines = [f"{found.model}: {found.tokens} tokens of held-back text, {found.bytes} bytes, window {found.window}"]
    lines.append(
        f"{'':<10}{'nats/token':>11}{'perplexity':>12}{'bits/byte':>11}{'top-1':>8}{'top-5':>8}{'calibration':>13}"
    )
    for row in found.figures:
        error = "–" if row.calibration_error is None else f"{row.calibration_error:.4f}"
        lines.append(
            f"{row.name:<10}{row.nats_per_token:>11.4f}{row.perplexity:>12.2f}{row.bits_per_byte:>11.4f}"
            f"{row.top_1:>8.1%}{row.top_5:>8.1%}{error:>13}"
        )
    if c := found.copies:
        lines.append(
            f"sample: {_share(c.known_words)} of the words are known, the longest copied run has {c.longest_copy} "
            f"characters, {_share(c.copied_runs)} of runs of 20 characters are copies"
        )
    if t := found.task:
        by = ", ".join(f"{share:.1%}" for share in t.by_position)
        lines.append(f"task: {t.exact_match:.1%} of {t.lines} unseen lines exactly right; by byte {by}")
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
