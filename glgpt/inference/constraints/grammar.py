"""Compiles constraints with the library `llguidance`.

Compiling usually takes milliseconds, but some schemas and expressions would take hours, and the library cannot be
interrupted. A constraint is therefore first compiled in a separate process with limits on time and memory.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from typing import Any

from glgpt.errors import quoted
from glgpt.inference.constraints.constraint import Constraint, ConstraintError
from glgpt.system.limited_process import LimitedProcess, LimitedProcessError, LimitError, answer_requests

BLANKS: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}  # blanks of `json.dumps`
CPU_S = 10  # maximum seconds of CPU time for one constraint
MEMORY = 4 << 30  # maximum bytes of address space
_KEPT = 256  # maximum number of constraints whose results are retained
_INVALID = re.compile(r"regex parse error:\n(?: {4})?(.*)\n(?:.*\n)*?error: (.*)")


def compile_grammar(constraint: Constraint, engine: Any) -> Any:
    """Returns llguidance's matcher of a constraint for the vocabulary of `engine`, an `LLTokenizer`.

    Raises ConstraintError for a constraint that cannot be used.
    """
    from llguidance import LLMatcher

    try:
        found = LLMatcher(engine, _grammar(constraint), log_level=0)
        if not found.is_error():
            found.compute_bitmask()  # sets the error if an expression is too complex
        why = found.get_error()
    except (ValueError, RuntimeError) as error:
        why = str(error)
    if why:
        raise ConstraintError(_unusable(constraint, reason(why)))
    return found


def reason(why: str) -> str:
    """Returns a short reason for `why`, an error message of llguidance.

    The reason is one of three: the invalid expression and what is wrong with it, the statement that the constraint is
    too complex, or the first line of `why`.
    """
    if found := _INVALID.search(why):
        return f"the expression {quoted(found[1], 80)}: {quoted(found[2], 120)}"
    if re.search(r"too many expressions|max is \d|panic|too large|Unable to determine", why):
        return "it is too complex; simplify it, or split it into several requests"
    return quoted(why.strip().split("\n")[0], 200)


def _unusable(constraint: Constraint, why: str) -> str:
    what = {"json_schema": "JSON schema", "regex": "regular expression"}.get(constraint.kind, "list of choices")
    return f"the {what} cannot be used to constrain text: {why}"


def _grammar(constraint: Constraint) -> str:
    from llguidance import LLMatcher

    if constraint.kind == "json_schema":
        return str(LLMatcher.grammar_from_json_schema(constraint.source, overrides=BLANKS))
    if constraint.kind == "regex":
        return str(LLMatcher.grammar_from_regex(constraint.source))
    texts = sorted(json.loads(constraint.source), key=len, reverse=True)
    return str(LLMatcher.grammar_from_regex("|".join(map(re.escape, texts))))


class _Checks:
    """Compiles constraints in processes with limited time and memory, and records which constraints can be used.

    One idle process is retained.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: LimitedProcess | None = None
        self._known: dict[bytes, str] = {}  # by digest of a constraint: the error message, or "" if it can be used

    def check(self, constraint: Constraint) -> None:
        """Raises ConstraintError if a constraint cannot be used, or could not be compiled."""
        digest = hashlib.sha256(f"{constraint.kind}:{constraint.source}".encode(errors="surrogatepass")).digest()
        with self._lock:
            why = self._known.get(digest)
        if why is None:
            why = self._compile(constraint, digest)
        if why:
            raise ConstraintError(why)

    def _compile(self, constraint: Constraint, digest: bytes) -> str:
        """Returns the error message of a constraint, or "" if it can be used.

        Raises ConstraintError if compiling failed for another reason, such as a busy machine; the next call then
        compiles the constraint again.
        """
        with self._lock:
            process, self._idle = self._idle or LimitedProcess(__name__), None
        try:
            why = str(process.ask({"kind": constraint.kind, "source": constraint.source})["error"])
        except LimitError as error:
            why = f"compiling it takes more than {CPU_S} s or too much memory; simplify it, for example its repetitions"
            why = _unusable(constraint, why)
            if error.waited:  # the machine was busy
                raise ConstraintError(why) from None
        except LimitedProcessError as error:
            raise ConstraintError(_unusable(constraint, f"it was not compiled: {error}")) from None
        with self._lock:
            self._idle = self._idle or process
            self._known[digest] = why
            if len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
        return why


_checks = _Checks()


def check_grammar(constraint: Constraint) -> None:
    """Raises ConstraintError if a constraint is unusable, regardless of the vocabulary. May be called in any thread."""
    _checks.check(constraint)


def main() -> int:
    """Runs in the separate process: answers requests, each with a constraint, until stdin ends.

    The `error` of an answer is the error message, or "" if the constraint can be used.
    """
    from llguidance import LLTokenizer

    engine = LLTokenizer("byte")

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        try:
            compile_grammar(Constraint(asked["kind"], asked["source"]), engine)
        except ConstraintError as error:
            return {"error": str(error)}
        return {"error": ""}

    return answer_requests(answer, CPU_S, MEMORY)
