"""Finds which tokens may come next in a constrained text, with the library `llguidance`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt import ops
from glgpt.inference.constraints.constraint import Constraint, ConstraintError
from glgpt.inference.constraints.grammar import check_grammar, compile_grammar, reason
from glgpt.program.formats import Floats
from glgpt.text.tokenizer import Tokenizer


class _Vocabulary:
    """A tokenizer with the attributes that llguidance reads.

    If the model has no end token, `eos_token_id` is the size of the model's vocabulary: an id that is never drawn.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos: int) -> None:
        self._tokenizer, self.eos_token_id = tokenizer, eos
        special = set(tokenizer.special.values()) - {tokenizer.special[text] for text in tokenizer.plain}
        self.special_token_ids = sorted({i for i in special if i < vocab_size} | {eos})
        known = min(vocab_size, tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in range(known)] + [b""] * (vocab_size - known)
        if eos == vocab_size:
            self.tokens.append(b"")

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):  # llguidance calls this with bytes, to test whether bytes are accepted
            raise TypeError("expected a str")
        return self._tokenizer.encode_ordinary(text)


class Grammars:
    """Compiles constraints for the vocabulary of a model. May be used in any thread."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer, self.vocab_size = tokenizer, vocab_size
        self.eos_ids = sorted(i for i in eos_ids if i < vocab_size)
        self._lock, self._engine = threading.Lock(), None  # type: tuple[Any, Any]

    def _vocabulary(self) -> Any:
        from llguidance import LLTokenizer
        from llguidance._tokenizer import TokenizerWrapper

        with self._lock:
            if self._engine is None:
                own = _Vocabulary(self._tokenizer, self.vocab_size, next(iter(self.eos_ids), self.vocab_size))
                self._engine = LLTokenizer(TokenizerWrapper(own), n_vocab=len(own.tokens))
            return self._engine

    def matcher(self, constraint: Constraint) -> Matcher:
        """Returns a matcher at the beginning of a text. Raises ConstraintError for a constraint that cannot be used."""
        check_grammar(constraint)
        return Matcher(compile_grammar(constraint, self._vocabulary()), self)


class Matcher:
    """Follows a constrained text token by token, and finds the tokens that may come next."""

    def __init__(self, engine: Any, grammars: Grammars) -> None:
        self._engine, self._grammars = engine, grammars
        self._allowed: NDArray[np.bool_] | None = None  # the value of `allowed`; None until it is computed

    def copy(self) -> Matcher:
        """Returns an independent matcher at the same place in the text."""
        return Matcher(self._engine.deep_copy(), self._grammars)

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """For each token id, True if the token may come next. Raises ConstraintError for too complex a constraint."""
        if self._allowed is None:
            size, ends = self._grammars.vocab_size, self._grammars.eos_ids
            if self._engine.is_stopped() and not self._engine.is_error():
                found = np.zeros(size, np.bool_)
                found[ends] = True
            else:
                bits = np.frombuffer(self._engine.compute_bitmask(), np.uint8)
                self._check()
                found = np.unpackbits(bits, bitorder="little")[:size].astype(np.bool_)
                if ends:
                    found[ends] = found[ends[0]]
            self._allowed = found
        return self._allowed

    @property
    def complete(self) -> bool:
        """True if no token may come next, except end tokens: the text matches the constraint and cannot continue."""
        allowed = self.allowed
        return int(allowed.sum()) == int(allowed[self._grammars.eos_ids].sum())

    def mask(self) -> Floats:
        """Returns `allowed` as texels `[n, 4]` for `ops.mask_logits`; each number holds the bits of 16 tokens."""
        bits = np.zeros(-(-len(self.allowed) // (4 * ops.MASK_BITS)) * 4 * ops.MASK_BITS, np.bool_)
        bits[: len(self.allowed)] = self.allowed
        numbers = np.packbits(bits, bitorder="little").view("<u2")
        return numbers.astype(np.float32).reshape(-1, 4)

    def accept(self, token: int) -> None:
        """Appends a token to the text; the token must be allowed. Ignores end tokens."""
        if token in self._grammars.eos_ids:
            return
        self._allowed = None
        self._engine.consume_token(token)
        self._check()

    def _check(self) -> None:
        if why := self._engine.get_error():
            raise ConstraintError(f"the constraint cannot be followed further: {reason(why)}")
