"""Records the training programs of an exported page, and writes training.json.

A size is a model that the page offers to train. Each size has a program for each kernel (the block of a matrix product
that one fragment computes) that a page may choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, cast

from glgpt.data.bundled import SETS
from glgpt.errors import GlgptError
from glgpt.models.network import Batch, Network
from glgpt.models.parameters import Parameter
from glgpt.models.spec import ModelConfig
from glgpt.models.views import described, family_json
from glgpt.page.documents.training import (
    BundledText,
    Offer,
    OfferConfig,
    OfferedParameter,
    OfferedProgram,
    OfferRecipe,
    OfferShape,
    Training,
)
from glgpt.page.programs import EDIT, PageEdits, Recording, capture_recording, generate_program, page_recordings
from glgpt.page.reading import Reading
from glgpt.program.kernel import Kernel
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program
from glgpt.text.tokenizer_training import bpe_size
from glgpt.training.program import Recipe, program_digest, record_predictions, record_training
from glgpt.training.settings import PRESETS, Settings, settings_for
from glgpt.tuning.kernel_selection import COLUMNS

SCHEMA: Final = 6  # version of training.json
OFFERED = ("nano", "tiny")  # the default presets
TOKENIZERS = ("bytes", "bpe:512", "bpe:1024")  # each needs separate programs, which fix the size of the vocabulary
LOOK = 64  # number of tokens whose attention is shown
VIEWED = ("generate", "capture", "interventions")  # programs for the page's other tabs: keys of `RecordingFiles`
MAX_DEFAULT_STEPS = 1000  # maximum default of the number of steps (minutes of training); a visitor can set more


@dataclass(frozen=True)
class Size:
    """A model that a page can train: `tokenizer` is `bytes` or `bpe:N`."""

    name: str
    tokenizer: str
    config: ModelConfig
    recipe: Recipe
    settings: Settings


def training_files(
    sizes: Sequence[str | Size], reading: Reading | None = None, precision: str = "f32"
) -> tuple[dict[str, Program], dict[str, str], Training]:
    """Returns the programs by file name, the bundled texts by file name, and the content of training.json.

    The name of a preset stands for several sizes, one for each tokenizer. `precision` is the number format in which the
    page trains these. Raises GlgptError for an unknown preset and for a size that a page cannot train.
    """
    files: dict[str, Program] = {}
    pairs = [(s, t) for s in dict.fromkeys(sizes) for t in _tokenizers(s)]
    named = [s if isinstance(s, Size) else _preset_size(s, t, precision) for s, t in pairs]
    offers = [_offer(size, files) for size in named]
    texts = {f"training-text-{name}.bin": found.make() for name, found in SETS.items()}
    listed: list[BundledText] = [
        {
            "name": name,
            "title": found.title,
            "about": found.about,
            "source": found.source,
            "file": file,
            "bytes": len(text.encode()),
        }
        for (name, found), (file, text) in zip(SETS.items(), texts.items(), strict=True)
    ]
    books = (reading or Reading()).listed()
    return files, texts, {"schema": SCHEMA, "texts": listed, "books": books, "look": LOOK, "sizes": offers}


def check_sizes(sizes: Sequence[str | Size]) -> None:
    """Raises GlgptError for an unknown preset and for a preset that is too large for a page."""
    for size in sizes:
        _tokenizers(size)


def _tokenizers(preset: str | Size) -> tuple[str, ...]:
    if isinstance(preset, Size):
        return (preset.tokenizer,)
    if preset not in PRESETS:
        raise GlgptError(f"preset {preset!r} is not one of {', '.join(PRESETS)}")
    if PRESETS[preset].tokenizer == "gpt2":
        raise GlgptError(f"preset {preset} is too large to train in a page; use {' or '.join(OFFERED)}")
    return tuple(dict.fromkeys((PRESETS[preset].tokenizer, *TOKENIZERS)))


def training_kernels() -> list[tuple[Kernel, int]]:
    """Returns the kernels that a page may choose, each with the number of draw buffers that it needs.

    In a product of a single row (as in generating text), a fragment of these kernels computes contiguous columns.
    """
    strided = [r for r in page_recordings("f32") if r.rows == "strided" and not r.kernel.blends]
    return [(replace(r.kernel, contiguous=COLUMNS["contiguous"]), r.draw_buffers) for r in strided]


def _preset_size(preset: str, tokenizer: str, precision: str) -> Size:
    settings = _settings(preset, tokenizer)
    recipe = Recipe(
        batch=settings.batch,
        context=settings.context,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        clip=settings.clip,
        precision=precision,
    )
    return Size(preset, tokenizer, settings.model_config(bpe_size(tokenizer) or 256), recipe, settings)


def _offer(size: Size, files: dict[str, Program]) -> Offer:
    """Returns the entry of a size in training.json, and adds its programs to `files`."""
    config, recipe, settings = size.config, size.recipe, size.settings
    if recipe.accumulate > 1:
        raise GlgptError("a page cannot train with --accumulate above 1")
    programs: list[OfferedProgram] = []
    for kernel, buffers in training_kernels():
        stem = f"training-{size.name}-{config.vocab_size}-{kernel.name}"
        name = f"{stem}.bin"  # no .gz, which some hosts would unpack
        program = files[name] = page_training_program(config, recipe, Limits(max_draw_buffers=buffers), kernel)
        views = {what: f"{stem}-{what}.bin" for what in VIEWED}
        files |= {views[what]: found for what, found in view_programs(config, Recording(kernel, buffers)).items()}
        programs.append(
            {
                "kernel": kernel.name,
                "draw_buffers": buffers,
                "file": name,
                "generate": views["generate"],
                "capture": views["capture"],
                "interventions": views["interventions"],
            }
        )
    return {
        "name": size.name,
        "tokenizer": size.tokenizer,
        "digest": program_digest(config, recipe),
        "config": cast("OfferConfig", config.fields()),
        "shape": cast("OfferShape", config.shape()),
        "activations": described(config),
        "family": family_json(config, [EDIT]),
        "checkpoint": config.to_dict(),
        "recipe": cast("OfferRecipe", asdict(recipe)),
        "settings": {
            "steps": settings.steps,
            "lr": settings.lr,
            "min_lr": settings.min_lr,
            "warmup": settings.warmup,
            "schedule": settings.schedule,
        },
        "count": config.parameter_count,
        "bytes": program.nbytes(),
        "flops": sum(p.flops for entry in ("backward", "update") for p in program.entries[entry].passes),
        "parameters": offered_parameters(config),
        "programs": programs,
    }


def _settings(preset: str, tokenizer: str) -> Settings:
    """Returns the preset's settings with at most `MAX_DEFAULT_STEPS` steps, and a batch that fits every device."""
    p = PRESETS[preset]
    batch = min(p.batch, Limits().max_texture_size // p.context)
    steps = min(p.steps, MAX_DEFAULT_STEPS)
    return settings_for(preset, None, {"tokenizer": tokenizer, "batch": batch, "steps": steps})


def offered_parameters(config: ModelConfig) -> list[OfferedParameter]:
    """Returns each parameter's names and shape, and whether its texture holds the transpose."""
    return [
        {"name": p.name, "stored": config.stored_name(each.name), "shape": list(p.shape), "transposed": _transposed(p)}
        for each in config.file_tensors.values()
        for p in each.parameters
    ]


def _transposed(parameter: Parameter) -> bool:
    """True if the texture holds the transpose of a parameter. Raises GlgptError if the texture holds padding."""
    if parameter.matrix != parameter.unpadded or (parameter.product and parameter.matrix[0] % 4):
        raise GlgptError(f"{parameter.name}: a page cannot train heads or widths that are padded")
    return parameter.transposed


def view_programs(config: ModelConfig, recording: Recording) -> dict[str, Program]:
    """Returns the programs with which the page's other tabs show a model in training, by the names of `VIEWED`.

    In their one-row products, a fragment takes strided columns. With strided columns, weights have no panels (strips of
    contiguous columns), just as in a training program. Therefore, these programs can read the training program's
    textures.
    """
    plain = replace(recording, kernel=replace(recording.kernel, contiguous=0))
    return {
        "generate": generate_program(config, plain, "f32"),
        "capture": capture_recording(config, plain, "f32"),
        "interventions": generate_program(config, plain, "f32", edits=PageEdits(config)),
    }


def page_training_program(config: ModelConfig, recipe: Recipe, limits: Limits, kernel: Kernel) -> Program:
    """Records the entries (named lists of passes) of `training_program`, and two more entries: `look` and `score`.

    `look` outputs every layer's attention patterns for `LOOK` tokens, or for a whole context if that is shorter.
    `score` writes `ops.prediction` of each row of a batch to the state (persistent texture) `predictions`.
    """
    rec = Recorder(limits)
    record_training(rec, config, recipe, kernel)
    tokens = min(LOOK, config.n_positions)
    names = set(config.patterns())
    with rec.entry("look"):
        Network(rec, config, kernel, names=names, role="state").prefill(tokens)
    with rec.entry("score"):
        network = Network(rec, config, kernel, recipe.precision, batch=Batch(recipe.batch), role="state")
        record_predictions(network, recipe)
    return rec.program()
