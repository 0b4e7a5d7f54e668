"""Computes n-gram models of a training text, as baselines for a language model.

The unigram model adds 1 to the count of each token (add-one smoothing). The context of a bigram is the previous token;
the context of a trigram is the two previous tokens. After a context c, the probability of a token w is
p(w | c) = (count(c w) + followers(c) p'(w)) / (count(c) + followers(c)) (Witten and Bell 1991). followers(c) is the
number of different tokens that followed c. p'(w) is the probability of w in the model with the next shorter context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.scoring.predictions import Predictions
from glgpt.text.dataset import Ids

NAMES = ("unigram", "bigram", "trigram")
BLOCK = 1 << 22  # tokens counted at once
Keys = NDArray[np.int64]
Progress = Callable[[int, int], None]


@dataclass
class _Followers:
    """Counts how often each token followed each context.

    `keys` has the number context * vocab + token of each pair that occurred, in ascending order. `counts` has how often
    each pair occurred.
    """

    vocab: int
    keys: Keys
    counts: Keys

    def add(self, keys: Keys) -> None:
        """Counts the keys of another part of the text."""
        found, counts = np.unique(keys, return_counts=True)
        self.keys, where = np.unique(np.concatenate([self.keys, found]), return_inverse=True)
        both = np.concatenate([self.counts, counts])
        self.counts = np.zeros(len(self.keys), np.int64)
        np.add.at(self.counts, where, both)

    def mixed(self, context: int, shorter: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the distribution `[vocab]` after a context.

        `shorter` is the distribution after the next shorter context.
        """
        begin, end = np.searchsorted(self.keys, (context * self.vocab, (context + 1) * self.vocab))
        if begin == end:
            return shorter
        kinds, counts = int(end - begin), self.counts[begin:end]
        p = kinds * shorter
        p[self.keys[begin:end] - context * self.vocab] += counts
        return p / float(counts.sum() + kinds)


def baselines(
    train: Ids, vocab: int, ids: Ids, targets: NDArray[np.int64], progress: Progress | None = None
) -> dict[str, Predictions]:
    """Returns, by name, the predictions of n-gram models of `train` for the tokens at positions `targets` of `ids`.

    A target's context is always the tokens directly before the target in the text, even if they are not in the window
    that the scored language model reads. At the start of the text, a target with fewer previous tokens than the context
    is predicted by the model with the next shorter context.
    """
    before = [_context(ids, targets, vocab, size) for size in (1, 2)]
    followers = [_Followers(vocab, *(np.zeros(0, np.int64) for _ in range(2))) for _ in before]
    wanted = [np.unique(context[context >= 0]) for context in before]
    unigrams = np.zeros(vocab, np.int64)
    for at in range(0, len(train), BLOCK):
        part = np.asarray(train[max(0, at - 2) : at + BLOCK], np.int64)
        new = part[min(at, 2) :]
        unigrams += np.bincount(new, minlength=vocab)
        for size, (counted, contexts) in enumerate(zip(followers, wanted, strict=True), 1):
            ends = np.arange(max(size, min(at, 2)), len(part))
            keys = _context(part, ends, vocab, size)
            seen = np.isin(keys, contexts)
            counted.add(keys[seen] * vocab + part[ends[seen]])
        if progress:
            progress(min(at + BLOCK, len(train)), len(train))
    base = (unigrams + 1).astype(np.float64) / float(len(train) + vocab)
    return _predicted(base, followers, before, np.asarray(ids[targets], np.int64))


def _context(ids: Any, targets: NDArray[np.int64], vocab: int, size: int) -> Keys:
    """Returns the `size` tokens before each target as one number; -1 for a target with fewer previous tokens."""
    found = np.zeros(len(targets), np.int64)
    for back in range(size, 0, -1):
        found = found * vocab + np.asarray(ids[np.maximum(targets - back, 0)], np.int64)
    found[targets < size] = -1
    return found


def _predicted(
    base: NDArray[np.float64], followers: list[_Followers], before: list[Keys], targets: NDArray[np.int64]
) -> dict[str, Predictions]:
    found = {name: Predictions.empty(len(targets)) for name in NAMES}
    order = np.lexsort((before[1], before[0]))  # groups equal contexts, so that each distribution is computed once
    last, p = [-2, -2], [base, base]
    favourite = float(base.max())
    for i in order:
        one, two = int(before[0][i]), int(before[1][i])
        if one != last[0]:
            p[0] = followers[0].mixed(one, base) if one >= 0 else base
            last = [one, -2]
        if two != last[1] or two < 0:
            p[1] = followers[1].mixed(two, p[0]) if two >= 0 else p[0]
            last[1] = two
        for name, distribution in zip(NAMES, (base, *p), strict=True):
            target, into = targets[i], found[name]
            own = distribution[target]
            into.nats[i] = -np.log(own)
            into.ranks[i] = np.count_nonzero(distribution > own) + np.count_nonzero(distribution[:target] == own)
            into.confidence[i] = favourite if distribution is base else distribution.max()
    return found
