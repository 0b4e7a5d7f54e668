"""Writes the files for the page of the training benchmark (`run.py --train`), and formats the results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from glgpt.bench.engine import RandomCheckpoint
from glgpt.bench.peaks import fma_program
from glgpt.data.bundled import bundled
from glgpt.errors import GlgptError
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.export import export
from glgpt.page.training import offered_parameters, page_training_program, training_kernels
from glgpt.program.spec import Limits
from glgpt.training.program import Recipe
from glgpt.training.settings import PRESETS

# Size of the model -> engines that are compared with the page. jax-js would take minutes for a step of `small`.
SIZES = {"nano": ["tfjs", "jax-js"], "small": ["tfjs"]}
VOCABULARY = 256  # one token per byte
LARGEST = 16384  # maximum texture side of the programs, in texels; `small` needs more than some devices support
LR = 1e-3
APART = {"f32": 1e-3, "f16": 5e-3}  # maximum difference of the first losses, in nats


def make_folder(folder: Path, rounds: int, sizes: Sequence[str], precision: str = "f32") -> None:
    """Writes all files for the page: a text, a model with which the page chooses a kernel, and programs.

    For each size and kernel, one program runs a training step. Another program measures the multiply-add peak. The page
    trains in `precision`; the other engines train in f32.
    """
    (folder / "text").write_text(bundled("plays"), encoding="utf-8")
    offers = [_offer(folder, name, precision) for name in sizes]
    program, flops = fma_program(Limits())
    (folder / "fma.json").write_text(program.to_json())
    task = {"rounds": rounds, "lr": LR, "seed": 1, "peak_flops": flops, "sizes": offers}
    (folder / "task.json").write_text(json.dumps(task))
    config, path = _config(sizes[0]), folder / "checkpoint"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config.to_dict()))
    checkpoint = RandomCheckpoint(config)
    save_file({name: checkpoint.read(name) for name in config.parameters}, path / "model.safetensors")
    export(path, folder / "page")


def _config(name: str) -> GPT2Config:
    p = PRESETS[name]
    return GPT2Config(VOCABULARY, p.context, p.n_embd, p.n_layer, p.n_head)


def _offer(folder: Path, name: str, precision: str) -> dict[str, Any]:
    """Returns a size's entry as in an exported page's training.json, but with the full batch size of the preset."""
    p, config = PRESETS[name], _config(name)
    recipe = Recipe(batch=p.batch, context=p.context, betas=(0.9, p.beta2), precision=precision)
    programs = []
    for kernel, buffers in training_kernels():
        file = f"{name}-{kernel.name}.json"
        limits = Limits(LARGEST, max_draw_buffers=buffers)
        (folder / file).write_text(page_training_program(config, recipe, limits, kernel).to_json())
        programs.append({"kernel": kernel.name, "draw_buffers": buffers, "file": file})
    return {
        "name": name,
        "config": config.fields(),
        "checkpoint": config.to_dict(),
        "recipe": asdict(recipe),
        "parameters": offered_parameters(config),
        "programs": programs,
        "beside": SIZES[name],
    }


def finish(result: dict[str, Any], precision: str = "f32") -> dict[str, Any]:
    """Adds to each row tokens/s, GFLOPS, their share of the multiply-add peak, and the time divided by the page's time.

    Raises GlgptError if the first losses of two engines differ too much.
    """
    for row in result["rows"]:
        ours = next(r for r in result["rows"] if r["size"] == row["size"])
        for step, (expected, loss) in enumerate(zip(ours["losses"], row["losses"], strict=True), 1):
            if None in (expected, loss) or not abs(loss - expected) <= APART[precision]:  # JSON sends a NaN as null
                raise GlgptError(
                    f"{row['size']}, step {step}: {row['engine']} has a loss of {loss} and the page of {expected}, "
                    "so they do not train the same model"
                )
        p, seconds = PRESETS[row["size"]], row["ms"] / 1e3
        row["tokens_per_s"] = p.batch * p.context / seconds
        row["gflops"] = p.batch * p.context * _config(row["size"]).training_flops(p.context) / seconds / 1e9
        row["share"] = row["gflops"] / result["fma_gflops"]
        row["ratio"] = row["ms"] / ours["ms"]
    return {"schema": 1, "precision": precision} | result


def table(result: dict[str, Any]) -> str:
    """Formats the results as text."""
    peak = f"{result['fma_gflops']:.0f} GFLOPS of multiply-adds"
    if not result["fma_sure"]:
        low, high = min(result["fma_samples"]), max(result["fma_samples"])
        peak += f" (unsure: its samples range from {low:.0f} to {high:.0f}, so % is only approximate)"
    kernel = f"{result['kernel']} with {result['fetch']}, the page in {result['precision']}"
    lines = [result["renderer"], result["browser"], f"{kernel}; {peak}"]
    for r in result["rows"]:
        if r["engine"] == "glgpt":
            p = PRESETS[r["size"]]
            shape = f"{p.n_layer} layers, {p.n_embd} wide, context {p.context}, batch {p.batch}"
            lines += ["", f"{r['size']}: {shape}, vocabulary {VOCABULARY}"]
        ratio = "" if r["engine"] == "glgpt" else f"{r['ratio']:7.2f}x"
        memory = "" if r["bytes"] is None else f"{r['bytes'] / 2**20:,.0f} MiB"
        spread = f"({min(r['rounds']):.0f} to {max(r['rounds']):.0f})"
        lines.append(
            f"  {r['engine']:8} {r['ms']:10.1f} ms/step {spread:18} {r['tokens_per_s']:10,.0f} tokens/s "
            f"{r['gflops']:7.2f} GFLOPS {r['share']:4.0%} {memory:>9} {ratio}"
        )
    lines += ["", "%: share of the multiply-add peak of this run; MiB: size of all textures, if the engine reports it"]
    lines += ["x: a step's time relative to the page's; times are medians, with the range of the rounds"]
    return "\n".join(lines)
