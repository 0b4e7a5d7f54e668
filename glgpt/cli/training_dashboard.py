"""Shows the progress of `glgpt train` on stderr: a panel on a terminal, else a line every `LINE_EVERY` seconds."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from glgpt.cli.progress import no_echo
from glgpt.training.events import Start, Step, TrainingCallbacks

if TYPE_CHECKING:
    from glgpt.training.plan import Plan  # its import would load the graphics library

LINE_EVERY = 10.0  # seconds between lines of a log
TASK_AFTER = 2.0  # seconds after which a log prints a line for a task other than steps
SAMPLE_LINES = 12
_BARS = "▁▂▃▄▅▆▇█"
EVENTS = ("plan", "start", "step", "validation", "sample", "save", "progress")  # callbacks of `train`


def clock(seconds: float) -> str:
    """Formats seconds as 1:02:03 or 2:03."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def sparkline(values: list[float], width: int) -> str:
    """Returns a bar chart of at most `width` characters. The finite values are divided into parts of equal size.

    Each character shows the mean of a part.
    """
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    cells = min(width, len(values))
    ends = [round(i * len(values) / cells) for i in range(cells + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]
    low, high = min(means), max(means)
    return "".join(_BARS[int((mean - low) / (high - low) * 7.999) if high > low else 0] for mean in means)


def shown(text: str) -> str:
    """Returns a sample text that is safe to print: without control characters and surrounding blank lines."""
    text = text.strip("\n").expandtabs(4)
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


def overflowed(step: Step) -> str:
    """Returns a message about a step whose gradients overflowed f16."""
    times = "once" if step.overflows == 1 else f"{step.overflows} times"
    return f"gradients overflowed {times}; repeated with a loss scale of {step.loss_scale:g}"


def opening(start: Start) -> str:
    """Returns a line about the model, the text and the memory."""
    held = f", {start.validation_tokens:,} of validation" if start.validation_tokens else ""
    since = f", after {start.step:,} steps" if start.step else ""
    return (
        f"{start.folder}: {start.parameters:,} parameters, {start.train_tokens:,} tokens of training text{held}; "
        f"{sum(start.memory.values()) / 2**20:,.0f} MiB of textures{since}"
    )


def planning(plan: Plan) -> str:
    """Returns a line about the memory and the estimated time of a step, to print before anything is allocated."""
    seconds = f"{plan.step_s:.2g}" if plan.step_s < 100 else f"{plan.step_s:,.0f}"
    return f"training takes {plan}; a step takes about {seconds} s, estimated from the speed of this device"


class Watcher:
    """Reports the progress of a training. Subclasses have a method for each event that they show."""

    def callbacks(self) -> TrainingCallbacks:
        """Returns the callbacks for `train`."""
        return TrainingCallbacks(**{f"on_{event}": getattr(self, event) for event in EVENTS if hasattr(self, event)})


class Log(Watcher):
    """Prints a line for the first step, for a step every `LINE_EVERY` seconds, for the last step and each validation.

    For a long task other than steps, prints a line after `TASK_AFTER` seconds and, if the task reports its progress,
    every `LINE_EVERY` seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.steps = stream, 0
        self._next = 0.0
        self._task = ""
        self._task_next = 0.0
        self._timer = threading.Timer(0, lambda: None)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _print(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """Records the progress of a task other than steps; prints a line if it takes long."""
        now = time.monotonic()
        if done >= total or what != self._task:
            self._timer.cancel()
            self._task = ""
        if done >= total:
            return
        if not self._task:
            self._task, self._task_next = what, now + TASK_AFTER
            if total == 1:  # the next call comes only when the task is done
                self._timer = threading.Timer(TASK_AFTER, self._print, [f"{what}…"])
                self._timer.daemon = True
                self._timer.start()
        elif now >= self._task_next:
            self._task_next = now + LINE_EVERY
            self._print(f"{what}: {100 * done // total}%")

    def plan(self, plan: Plan) -> None:
        """Prints the plan."""
        self._print(planning(plan))

    def start(self, start: Start) -> None:
        """Prints the opening line."""
        self.steps = start.settings.steps
        self._print(opening(start))

    def step(self, step: Step) -> None:
        """Prints a line if `LINE_EVERY` seconds have passed, for the last step and for an overflow."""
        now = time.monotonic()
        if step.overflows:
            self._print(f"step {step.step}/{self.steps}  {overflowed(step)}")
        if now < self._next and step.step != self.steps:
            return
        self._next = now + LINE_EVERY
        rate = f"  {step.tokens_per_s:,.0f} tokens/s  {clock(step.seconds_left)} left" if step.tokens_per_s else ""
        metrics = f"loss {step.loss:.4f}  lr {step.lr:.3g}  gradient {step.grad_norm:.3g}"
        self._print(f"step {step.step}/{self.steps}  {metrics}{rate}")

    def validation(self, step: int, nats: float, bits: float) -> None:
        """Prints a validation's results."""
        self._print(f"step {step}/{self.steps}  validation {nats:.4f} nats/token, {bits:.4f} bits/byte")

    def sample(self, step: int, text: str) -> None:
        """Prints a sample, indented."""
        self._print(f"sample at step {step}:\n" + "\n".join(f"  {line}" for line in shown(text).split("\n")))


class Board(Watcher):
    """A panel on a terminal that is redrawn in place, four times a second."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._start: Start | None = None
        self._step: Step | None = None
        self._validated = ""
        self._sample: tuple[int, str] | None = None
        self._saved = 0
        self._overflowed = ""
        self._working: tuple[str, int, int] | None = None
        self._quiet = contextlib.ExitStack()
        self._losses: deque[float] = deque(maxlen=100_000)
        self._live = Live(console=self._console, get_renderable=self.draw, refresh_per_second=4)

    def __enter__(self) -> Board:
        self._quiet.enter_context(no_echo(self._console.file))
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._working = None
        self._live.stop()
        self._quiet.close()

    def plan(self, plan: Plan) -> None:
        """Prints the plan above the panel."""
        self._console.print(planning(plan), highlight=False)

    def start(self, start: Start) -> None:
        """Prints the opening line above the panel."""
        self._start, self._saved = start, start.step
        self._console.print(opening(start), highlight=False)

    def step(self, step: Step) -> None:
        """Records a step's metrics."""
        self._step = step
        if step.overflows:
            self._overflowed = f"step {step.step:,}: {overflowed(step)}"
        if step.loss == step.loss:
            self._losses.append(step.loss)

    def validation(self, step: int, nats: float, bits: float) -> None:
        """Records a validation's results."""
        self._validated = f"{nats:.4f} ({bits:.3f} bits/byte) at step {step:,}"

    def sample(self, step: int, text: str) -> None:
        """Records a sample."""
        self._sample = (step, text)

    def save(self, step: int) -> None:
        """Records the step of the last checkpoint."""
        self._saved = step

    def progress(self, what: str, done: int, total: int) -> None:
        """Records the progress of a task other than steps."""
        self._working = (what, done, total) if done < total else None

    def draw(self) -> RenderableType:
        """Returns the current panel."""
        rows: list[RenderableType] = []
        if self._start:
            rows.append(self._figures(self._start, self._step))
        if self._working:
            what, done, total = self._working
            grid = Table.grid(padding=(0, 1))
            share = f"{100 * done / total:.0f}%" if total > 1 else ""
            grid.add_row(Text(what, "dim"), ProgressBar(total, done, width=24), share)
            rows.append(grid)
        if self._sample:
            step, text = self._sample
            lines = shown(text).split("\n")[:SAMPLE_LINES]
            rows.append(Panel(Text("\n".join(lines)), title=f"sample at step {step:,}", title_align="left"))
        return Group(*rows)

    def _figures(self, start: Start, step: Step | None) -> RenderableType:
        steps = start.settings.steps
        done = step.step if step else start.step
        bar = Table.grid(padding=(0, 1))
        left = f"{clock(step.seconds_left)} left" if step and step.tokens_per_s else ""
        bar.add_row(ProgressBar(steps, done, width=40), f"step {done:,} of {steps:,}", Text(left, "dim"))
        grid = Table.grid(padding=(0, 2))
        if step:
            rate = f"{step.tokens_per_s:,.0f}" if step.tokens_per_s else "–"
            memory = f"{sum(start.memory.values()) / 2**20:,.0f} MiB"
            for a, b, c, d in (
                ("loss", f"{step.loss:.4f}", "validation", self._validated or "–"),
                ("learning rate", f"{step.lr:.2e}", "gradient norm", f"{step.grad_norm:.3g}"),
                ("tokens/s", rate, "textures", f"{memory}; checkpoint at step {self._saved:,}"),
            ):
                grid.add_row(Text(a, "dim"), Text(b, "bold" if a == "loss" else ""), Text(c, "dim"), d)
        if self._overflowed:
            grid.add_row(Text("f16", "dim"), "", "", self._overflowed)
        return Group(bar, grid, Text(sparkline(list(self._losses), 60), "cyan"))


def watcher() -> Log | Board:
    """Returns a panel if stderr is a terminal, else a log."""
    return Board(sys.stderr) if sys.stderr.isatty() else Log(sys.stderr)
