"""Exports a model as a static web page: the viewer, the programs, the weights as packed textures, a reference run."""

from __future__ import annotations

import gzip
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import default_dtype, weight_formats
from glgpt.inference.model import LanguageModel
from glgpt.inference.programs import weight_layouts
from glgpt.models.context import first_context, largest_context
from glgpt.models.part import Part
from glgpt.page.built import built_page
from glgpt.page.documents.manifest import Manifest
from glgpt.page.export_options import ExportOptions
from glgpt.page.manifest import compact, identify, manifest_json
from glgpt.page.output.destination import checked_out, copy_viewer, publish, write_listed
from glgpt.page.output.files import Progress, reference_json, tokenizer_json, write_weights
from glgpt.page.output.preview import write_preview
from glgpt.page.output.schemas import validate
from glgpt.page.output.selftest import FILE as SELFTEST
from glgpt.page.output.selftest import write_selftest
from glgpt.page.output.single_file import check_size, single_page
from glgpt.page.programs import cache_format, record_page
from glgpt.page.prompts import Prompts
from glgpt.page.reading import Reading
from glgpt.page.recorded import recorded_json
from glgpt.page.training import training_files
from glgpt.program.spec import Limits
from glgpt.system.files import workplace, written_whole
from glgpt.system.memory import uncollected
from glgpt.tuning.kernel_selection import DeviceSettings

logger = logging.getLogger(__name__)
PACKED = ("interventions", "several", "masked")  # programs of a recording that are written gzipped
# Positions in the reference run; twice the length of its prompt if that is more. Caches for a large model's full
# context would take gigabytes.
CONTEXT = 256
Phase = Callable[[str], None]  # called with a label when a phase begins


@uncollected()
def export(
    name_or_path: str | Path | None,
    out: str | Path,
    options: ExportOptions | None = None,
    *,
    progress: Progress | None = None,
    phase: Phase = lambda _: None,
    **device: Any,
) -> Manifest:
    """Writes the page of a checkpoint: a folder, or one HTML file. `ExportOptions` defines what the page contains.

    `progress` is called with (bytes written, total bytes) of the weights, and `phase` with a label when a phase begins.
    `device` are options of `from_pretrained` for the reference run; of these, `cache_dtype` also applies to the page.
    An earlier export at `out` is replaced only when the page is complete. Returns the manifest. Raises GlgptError if
    `out` holds something other than an export, if the viewer is not built, or if the model cannot be loaded.
    """
    options = options or ExportOptions()
    given, out = out, checked_out(out, options.single_file)  # a symbolic link stays; its target is replaced
    if options.split:
        with Checkpoint.open(name_or_path) as checkpoint:
            options.split.part(checkpoint.config)
    viewer = built_page()
    with workplace(out) as work:
        folder = work / "page"
        if options.embed:
            shutil.copytree(viewer / "embed", folder)
        else:
            copy_viewer(viewer, folder)
        with Checkpoint.open(name_or_path, options.adapter) as checkpoint:
            held = _shortened(checkpoint, options.context)
            prompts = Prompts.load(held.path, held.config, options.prompts)
            options = replace(
                options,
                dtype=options.dtype or default_dtype(held),  # a split server has the same default
                name=options.name or checkpoint.name,
                trained_on=options.trained_on or prompts.page.trained_on,
                reading=options.reading or Reading(),
            )
            manifest = _write(held, folder, options, prompts, progress, phase, device)
            _finish(folder, options, manifest)
        if options.single_file:
            with written_whole(out) as file:
                file.write(single_page(folder, manifest).encode())
        else:
            publish(folder, given, out, work)
    return manifest


def _shortened(checkpoint: Checkpoint, context: int | None) -> Checkpoint:
    """Returns the checkpoint with a context of `context` tokens; None: the model's context, but at most 2,048.

    Raises GlgptError if the model or a browser does not support `context`.
    """
    config, limits = checkpoint.config, Limits()
    positions = first_context(config, limits, context)
    if context is None and positions < config.n_positions:
        largest = largest_context(config, limits)
        whole = config.n_positions
        logger.info(
            "the page's context is %d of the model's %d tokens (--context, up to %d)", positions, whole, largest
        )
    return checkpoint.shortened(positions)


def _write(
    checkpoint: Checkpoint,
    folder: Path,
    options: ExportOptions,
    prompts: Prompts,
    progress: Progress | None,
    phase: Phase,
    device: dict[str, Any],
) -> Manifest:
    """Writes the page's data into the folder and returns its manifest."""
    config, split = checkpoint.config, options.split
    part = split.part(config) if split else Part.whole(config)
    phase("recording programs")
    formats = weight_formats(checkpoint, options.dtype)
    if options.single_file:
        check_size(config, formats)
    asked = device.get("cache_dtype", "auto")
    caches = cache_format(config, formats, "f32" if split and asked == "auto" else asked)  # servers' caches are f32
    device = device | {"cache_dtype": caches}
    programs, recordings = record_page(config, formats, part, split, caches)  # fails early if the model is too large
    layouts = weight_layouts(programs[recordings[0]["generate"]], config)
    packed = {str(file) for r in recordings for kind, file in r.items() if kind in PACKED}
    documents = _documents(checkpoint, folder, options, prompts, phase, device)
    texts: dict[str, str] = {}
    if options.train:
        trained, texts, documents["training.json"] = training_files(options.train, options.reading, options.precision)
        programs |= trained
        packed |= trained.keys()
    phase("writing programs")
    written = {name: compact(document) for name, document in documents.items()}
    written |= {name: program.to_json() for name, program in programs.items()}
    for name, text in written.items():
        validate("program" if name in programs else name.removesuffix(".json"), json.loads(text), name)
    written |= {name: compact(text) for name, text in texts.items()}
    packed |= texts.keys()
    files = {}
    for name, text in written.items():
        data = gzip.compress(text.encode(), 9, mtime=0) if name in packed else text.encode()
        files[name] = write_listed(folder / name, data)
    if not options.embed:
        files[SELFTEST] = write_selftest(folder)
    phase("writing weights")
    shards = write_weights(checkpoint, layouts, folder, options.shard_size, progress)
    manifest = manifest_json(checkpoint, options, formats, prompts, recordings, files, shards)
    (folder / "manifest.json").write_text(compact(manifest), encoding="utf-8")
    return manifest


def _documents(
    checkpoint: Checkpoint,
    folder: Path,
    options: ExportOptions,
    prompts: Prompts,
    phase: Phase,
    device: dict[str, Any],
) -> dict[str, Any]:
    """Returns the content of tokenizer.json, reference.json and recorded.json, and writes the preview picture."""
    tokenizer, opening = prompts.tokenizer, prompts.opening()
    documents: dict[str, Any] = {"tokenizer.json": tokenizer_json(tokenizer)} if tokenizer else {}
    settings = DeviceSettings.taken_from(device)
    short = checkpoint.shortened(max(CONTEXT, 2 * len(opening or ())))
    phase("running the reference")
    with LanguageModel(short, tokenizer, options.dtype, settings=settings, **device) as model:
        documents["reference.json"] = reference_json(model, opening, list(checkpoint.config.activations))
        phase("generating the opening text")
        if recorded := recorded_json(model, prompts):
            documents["recorded.json"] = recorded
        if options.site:
            write_preview(model, folder, options.site, str(options.name), prompts)
    return documents


def _finish(folder: Path, options: ExportOptions, manifest: Manifest) -> None:
    """Allows the page to connect to the servers that `options` name; if the page is a folder, gives it an id."""
    if options.train and options.reading and not options.embed:
        options.reading.allow(folder / "index.html")
    if options.split:
        options.split.allow(folder / "index.html")
    if not options.single_file and not options.embed:
        identify(folder, manifest)
