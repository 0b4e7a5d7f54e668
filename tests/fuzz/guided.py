"""Coverage-guided fuzzing with atheris, if it is installed: `make fuzz ENGINE=atheris SECONDS=600 ONLY=config,run`.

The targets, seeds and structure-aware mutations are those of `make fuzz`. libFuzzer keeps inputs that reach new code of
glgpt and mutates them further. An input holds all of a target's files, each preceded by its length.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for `helpers`, which has the layouts of tokenizers
MISSING = "atheris is not installed here; it has wheels for some Pythons on Linux: {pip} install atheris"
TARGETS = (
    "safetensors,shards,torch-zip,torch-legacy,config,tokenizer,tokenizer-json,tokenizer-text,program,manifest,run"
)
TARGETS += ",probe-cache"
SECONDS = 60  # time for each target
TIME, MEMORY = 60, 3072  # seconds per case, MiB per process: more than in `harness`, for instrumented code


def joined(files: dict[str, bytes]) -> bytes:
    """Returns libFuzzer's input for these files, in the order of their names."""
    return b"".join(len(data).to_bytes(4, "little") + data for _, data in sorted(files.items()))


def split(data: bytes, names: list[str]) -> dict[str, bytes] | None:
    """Returns the files of an input that `joined` made; None if a length in the input is wrong."""
    files, at = {}, 0
    for name in names:
        size = int.from_bytes(data[at : at + 4], "little")
        files[name] = data[at + 4 : at + 4 + size]
        at += 4 + size
    return files if at == len(data) else None


def child(name: str, corpus: str, *options: str) -> None:
    """Fuzzes one target until libFuzzer ends the process."""
    import atheris  # type: ignore[import-not-found, unused-ignore]

    with atheris.instrument_imports(include=["glgpt"]):
        import harness
        import targets
    import mutations

    target = next(t for t in targets.TARGETS if t.name == name)
    seeds = target.seeds()
    names = sorted(seeds[0])
    found: set[str] = set()
    for i, seed in enumerate(seeds):
        if sorted(seed) == names:
            (Path(corpus) / str(i)).write_bytes(joined(seed))
    largest = 2 * max(len(joined(seed)) for seed in seeds) + 4096

    def one(data: bytes) -> None:
        files = split(data, names)
        if files is None:
            return
        what = harness.judged(target, files)
        kind = what.split(":")[0] + what.rpartition("(")[2]
        if what not in ("refused", "accepted") and kind not in found:
            found.add(kind)
            folder = harness.REGRESSIONS / name / f"atheris-{len(found)}-{os.getpid()}"
            harness.write(folder, files)
            print(f"    {what}\n    kept in {folder}", flush=True)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        files, draw = split(data, names), random.Random(seed)
        if files is None:
            return bytes(data)
        if draw.random() < 0.5:
            return joined(mutations.mutated(files, [seed]))[:size]
        file = draw.choice(names)
        files[file] = bytes(atheris.Mutate(files[file], max(1, size - len(data) + len(files[file]))))
        return joined(files)

    atheris.Setup([sys.argv[0], corpus, f"-max_len={largest}", *options], one, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> int:
    """Runs the targets one after another, each in a separate process. Returns 1 if there was a finding."""
    try:
        import atheris  # noqa: F401
    except ImportError:
        sys.exit(MISSING.format(pip=f"{sys.executable} -m pip"))
    chosen = (os.environ.get("ONLY") or TARGETS).split(",")
    seconds = int(float(os.environ.get("SECONDS") or SECONDS * len(chosen)) / len(chosen))
    bad = 0
    for name in chosen:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="glgpt-fuzz-corpus-") as corpus:
            options = [f"-max_total_time={seconds}", f"-timeout={TIME}", f"-rss_limit_mb={MEMORY}"]
            options += [f"-seed={int(os.environ.get('SEED') or 0) + 1}", "-print_final_stats=1"]
            options += [f"-artifact_prefix={tempfile.gettempdir()}/glgpt-fuzz-{name}-"]
            done: Any = subprocess.run(
                [sys.executable, __file__, name, corpus, *options],
                check=False,
                capture_output=True,
                text=True,
                errors="replace",
            )
            kept = len(list(Path(corpus).iterdir()))
        cases = re.findall(r"number_of_executed_units:\s*(\d+)", done.stderr)
        reached = re.findall(r"cov: (\d+)", done.stderr)
        findings = done.stdout.count("kept in") + (done.returncode != 0)
        bad += findings
        print(
            f"{name:16} {int((cases or ['0'])[-1]):7,} cases: {(reached or ['?'])[-1]} edges reached (from "
            f"{(reached or ['?'])[0]}), {kept} inputs kept, {findings} findings in {time.monotonic() - start:.0f} s",
            flush=True,
        )
        print(done.stdout, end="", flush=True)
        if done.returncode:
            print(done.stderr[-1500:], flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(*sys.argv[1:])
    sys.exit(main())
