"""Trains a BPE in a separate process, which ends at once if the caller is interrupted.

The `tokenizers` library can train for minutes on a large text, and Python handles no signals during that time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from glgpt.errors import GlgptError, quoted

MAX_WORD_BYTES = 1024  # bytes; longer words are divided: training time grows with the square of their length
_LENGTH = struct.Struct("<q")
_END = -1  # sent instead of a length if no piece follows
_COMMAND = "import sys; sys.path[:] = sys.argv[1:]; from glgpt.text.bpe_process import main; main()"


def train(pieces: Iterable[str], size: int, special: Sequence[str], letters: Sequence[str]) -> dict[str, Any]:
    """Trains a byte-level BPE of up to `size` tokens on a text in pieces; returns its `vocab` and `merges`.

    The first ids are those of `special`, then those of `letters`, which represent the bytes. Only pairs of tokens that
    occur at least twice are merged. Raises GlgptError if the process fails, and any error that iterating over `pieces`
    raises.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _COMMAND, *sys.path], stdin=pipe, stdout=pipe, stderr=pipe) as child:
        try:
            with contextlib.suppress(BrokenPipeError):  # the process has ended; stderr holds the reason
                _send(child.stdin, json.dumps([size, special, letters]), pieces)
            made, why = child.communicate()
        except BaseException:
            child.kill()
            # Closes stdin here. Otherwise the end of `with` would close it, and raise BrokenPipeError for unsent bytes
            # instead of the error that is being handled.
            if child.stdin:
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.close()
            child.wait()
            raise
    if child.returncode:
        last = (why.decode(errors="replace").strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise GlgptError(f"the tokenizer cannot be trained: {quoted(last, 200)}")
    return dict(json.loads(made))


def _send(stdin: IO[bytes] | None, settings: str, pieces: Iterable[str]) -> None:
    assert stdin
    for text in itertools.chain([settings], pieces):
        data = text.encode("utf-8", "replace")
        stdin.write(_LENGTH.pack(len(data)) + data)
    stdin.write(_LENGTH.pack(_END))
    stdin.flush()


def _received(stdin: IO[bytes]) -> Iterator[str]:
    while (size := _LENGTH.unpack(stdin.read(_LENGTH.size))[0]) != _END:
        yield stdin.read(size).decode()


def main() -> None:
    """Runs in the separate process: reads what `train` sends, and writes the vocabulary and the merges as JSON."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends this process
    texts = _received(sys.stdin.buffer)
    size, special, letters = json.loads(next(texts))
    engine = Tokenizer(models.BPE())
    # Divides words into pieces of at most MAX_WORD_BYTES letters, each of which stands for a byte.
    parted = pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{MAX_WORD_BYTES}}}"), "isolated")
    engine.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False), parted])
    engine.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size, min_frequency=2, show_progress=False, special_tokens=special, initial_alphabet=letters
        ),
    )
    learned = json.loads(engine.to_str())["model"]
    sys.stdout.write(json.dumps({"vocab": learned["vocab"], "merges": learned["merges"]}))
