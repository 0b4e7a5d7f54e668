"""A progress bar on stderr: only where a person watches, and only for what takes more than a second."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(label: str, unit: str, delay: float = 1.0) -> Iterator[Callable[[int, int], None] | None]:
    """Gives a function to call with (done, total), or None where stderr is no terminal. Unit "B" counts in MB.

    The bar appears after `delay` seconds and goes when the block ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc=label, unit=unit, unit_scale=unit == "B", delay=delay, leave=False, dynamic_ncols=True) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
