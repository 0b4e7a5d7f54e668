"""Exports a model as a static web page: the viewer, the programs, the weights as packed textures, a reference run."""

from __future__ import annotations

import base64
import contextlib
import functools
import gzip
import hashlib
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glgpt import ops
from glgpt.checkpoint.end_of_text import end_of_text
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import FileError, GlgptError, quoted
from glgpt.gl.player import DRAW_FLOPS
from glgpt.inference.capture import ONE_CAPTURED
from glgpt.inference.chunks import ONE_TOKEN, PER_CHUNK
from glgpt.inference.model import LanguageModel
from glgpt.inference.programs import weight_layouts
from glgpt.models.context import first_context, largest_context
from glgpt.models.part import Part
from glgpt.models.spec import ModelConfig
from glgpt.models.views import described, family_json
from glgpt.page.built import built_page
from glgpt.page.files import Progress, reference_json, tokenizer_json, write_weights
from glgpt.page.preview import checked_site, checked_source, write_preview
from glgpt.page.programs import (
    EDIT,
    SEVERAL,
    PageEdits,
    capture_recording,
    generate_program,
    page_recordings,
    probe_programs,
    several_program,
)
from glgpt.page.prompts import Prompts
from glgpt.page.reading import Reading
from glgpt.page.recorded import recorded_json
from glgpt.page.split import SplitPage
from glgpt.page.training import Size, check_sizes, training_files
from glgpt.program.formats import FORMATS
from glgpt.program.spec import Limits, Program
from glgpt.system.files import data_path, holds_manifest, named_errors, written_whole
from glgpt.system.outputs import output_file, output_folder
from glgpt.tuning.kernel_selection import PANELS_PAY, STEADY, DeviceSettings

logger = logging.getLogger(__name__)
SCHEMA = 3  # of manifest.json
TUNING = {  # constants that the page shares with the desktop; `ahead`: maximum number of tokens in flight
    "one_token": ONE_TOKEN,
    "one_captured": ONE_CAPTURED,
    "per_chunk": PER_CHUNK,
    "panels_pay": PANELS_PAY,
    "steady": STEADY,
    "draw_flops": DRAW_FLOPS,
    "ahead": 12,
    "texts": SEVERAL,
}
SHARD_SIZE = 24 << 20
CONTEXT = 256  # positions of the reference run: caches for the full context of a large model would take gigabytes
LARGEST_FILE = 100_000_000  # bytes that a plain static host accepts
WRITTEN = re.compile(  # names that any export writes directly in its folder
    r"assets|index\.html|preview\.png|sw\.js|glgpt\.(?:js|d\.ts)|(manifest|recorded|reference|tokenizer|training)\.json"
    r"|(capture|probe|program)-[\w-]+\.json|(interventions|several|training|weights)-[\w-]+\.bin"
)
OTHERS = ("embed", "dashboard")  # folders of the built page that an export omits
SINGLE_FILE = 64 << 20  # maximum bytes of weights; with more, a browser is slow to open the page


def export(
    name_or_path: str | Path | None,
    out: str | Path,
    dtype: str = "f32",
    *,
    shard_size: int = SHARD_SIZE,
    single_file: bool = False,
    embed: bool = False,
    name: str | None = None,
    prompts: Sequence[str] = (),
    train: Sequence[str | Size] = (),
    precision: str = "f32",
    trained_on: str | None = None,
    reading: Reading | None = None,
    split: SplitPage | None = None,
    site: str | None = None,
    source: str | None = None,
    context: int | None = None,
    progress: Progress | None = None,
    phase: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> dict[str, Any]:
    """Writes the page of a checkpoint: a folder, or with `single_file` one HTML file that opens from disk.

    `name` is the model's name in the page (default: `Checkpoint.name`). The page opens with the first of `prompts` and
    offers all of them (default: those of the model's `page.json`, else neutral ones); an instruct model gets them in
    its chat format. `trained_on` describes the training text in a few words (default: that of `page.json`).

    `train` lists the presets, or other sizes, that the page can train in `precision`. `reading` are the sources of
    texts for training (default: the books of `data.books`).

    With `split`, a server runs some of the blocks; the page holds the others, or all.

    `site` is the address at which the page will be published, for the preview picture of links. `source` is the
    address of its source code, to which the page links.

    `context` is the page's context length in tokens (default: the model's, at most 2,048). The caches hold keys,
    values and queries of each position, so a shorter context takes less memory.

    With `embed`, writes a module `glgpt.js` for other pages, and an example of its use, instead of the page.

    `progress` is called with (bytes written, total bytes) of the weights, and `phase` with a label when a phase begins.
    `options` are those of `from_pretrained`, for the reference run. An earlier export at `out` is replaced in one
    step at the end. Returns the manifest. Raises GlgptError if `out` is anything else, if the viewer is not built, or
    if the model cannot be loaded.
    """
    if single_file and embed:
        raise GlgptError("--single-file and --embed cannot be combined: a module is a folder")
    given, out = out, checked_out(out, single_file)  # a symbolic link stays; its target is replaced
    if split and (single_file or embed or train):
        what = "--split" if split.blocks else "--server"
        raise GlgptError(f"{what} cannot be combined with --single-file, --embed or --train")
    site = None if site is None else checked_site(site, single_file or embed)
    source = None if source is None else checked_source(source)
    if dtype not in FORMATS:
        raise GlgptError(f"dtype {dtype!r} is not one of {', '.join(FORMATS)}")
    if not 1 << 16 <= shard_size <= LARGEST_FILE:
        raise GlgptError(f"shard size is {shard_size}; it must be between 64 KiB and 100 MB")
    check_sizes(train)
    if split:
        with Checkpoint.open(name_or_path) as checkpoint:
            split.part(checkpoint.config)
    viewer = built_page()
    made = [folder for folder in out.parents if not folder.exists()]
    with contextlib.ExitStack() as stack:
        stack.enter_context(named_errors(out))
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        stack.callback(_clean_up, work, made)
        folder = work / "page"
        if embed:
            shutil.copytree(viewer / "embed", folder)
        else:
            shutil.copytree(viewer, folder, ignore=lambda at, _: OTHERS if Path(at) == viewer else ())
        with Checkpoint.open(name_or_path) as checkpoint:
            reading, held = reading or Reading(), _shortened(checkpoint, context)
            texts = Prompts.load(held.path, held.config, prompts)
            about, name = trained_on or texts.page.trained_on, name or checkpoint.name
            export_options = ExportOptions(
                dtype, shard_size, name, texts, train, precision, about, reading, phase, split, site, source
            )
            manifest = _write(held, folder, export_options, progress, options)
            if train and not embed:
                reading.allow(folder / "index.html")
            if split:
                split.allow(folder / "index.html")
            if not single_file and not embed:
                _identify(folder, manifest)
        if single_file:
            _check_size(manifest)
            with written_whole(out) as file:
                file.write(single_page(folder, manifest).encode())
        else:
            folder.chmod(0o755)
            checked_out(given, single_file)  # again: others may have written there in the meantime
            _swap(folder, out, work / "old")
    return manifest


def _shortened(checkpoint: Checkpoint, context: int | None) -> Checkpoint:
    """Returns the model with this context length, by default at most 2,048.

    Raises GlgptError if the model or a browser does not support it.
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


def _clean_up(work: Path, made: Sequence[Path]) -> None:
    shutil.rmtree(work, ignore_errors=True)
    with contextlib.suppress(OSError):  # fails if they hold the finished page
        for folder in made:
            folder.rmdir()


def checked_out(out: str | Path, single_file: bool) -> Path:
    """Returns the path to write a page to: a new name, an empty folder, or an earlier export.

    Raises FileError for anything else.
    """
    if single_file:
        return output_file(out, ".html", ("earlier export", _is_single_page), parents=True)
    path = output_folder(out, ("earlier export", _is_export))
    if path.is_dir() and (other := next((p.name for p in sorted(path.iterdir()) if not WRITTEN.fullmatch(p.name)), "")):
        raise FileError(
            f"--out {quoted(out)} holds {quoted(other)}, which is not part of an export and would be deleted: "
            "move it elsewhere first"
        )
    return path


def _is_single_page(file: Path) -> bool:
    with file.open("rb") as opened:
        return b"<title>glgpt</title>" in opened.read(4096)


def _is_export(folder: Path) -> bool:
    return holds_manifest(folder, {"glgpt"}) and (folder / "index.html").is_file()


def _check_size(manifest: dict[str, Any]) -> None:
    total = sum(shard["bytes"] for shard in manifest["shards"])
    if total > SINGLE_FILE:
        raise GlgptError(
            f"the weights are {total / 2**20:.0f} MiB and a single file holds up to {SINGLE_FILE >> 20} MiB; "
            "export a folder, or use f16, q8 or q4"
        )


def _swap(new: Path, out: Path, old: Path) -> None:
    """Moves `new` to `out`; an earlier folder there is moved to `old`, and back if this fails."""
    replaced = out.exists()
    if replaced:
        out.rename(old)
    try:
        new.rename(out)
    except BaseException:
        if replaced:
            old.rename(out)
        raise


@dataclass(frozen=True)
class ExportOptions:
    """The options of `export` that concern the files in the folder."""

    dtype: str
    shard_size: int
    name: str
    prompts: Prompts
    train: Sequence[str | Size]
    precision: str
    trained_on: str | None
    reading: Reading
    phase: Callable[[str], None]
    split: SplitPage | None = None
    site: str | None = None
    source: str | None = None


def _write(
    checkpoint: Checkpoint,
    folder: Path,
    export_options: ExportOptions,
    progress: Progress | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Fills the folder and returns its manifest."""
    config, dtype, train = checkpoint.config, export_options.dtype, export_options.train
    split = export_options.split
    part = split.part(config) if split else Part.whole(config)
    names, prompts, tokenizer = list(config.activations), export_options.prompts, export_options.prompts.tokenizer
    export_options.phase("recording programs")
    programs, listed = _recordings(config, dtype, part, split)  # first, since it may fail for limits of browsers
    documents = {"tokenizer.json": _json(tokenizer_json(tokenizer))} if tokenizer else {}
    settings, opening = DeviceSettings.taken_from(options), prompts.opening()
    short = checkpoint.shortened(max(CONTEXT, 2 * len(opening or ())))
    export_options.phase("running the reference")
    with LanguageModel(short, tokenizer, dtype, settings=settings, **options) as model:
        documents["reference.json"] = _json(reference_json(model, opening, names))
        export_options.phase("generating the opening text")
        recorded = recorded_json(model, prompts)
        if export_options.site:
            write_preview(model, folder, export_options.site, export_options.name, prompts)
    packed = {r[kind]: programs[r[kind]] for r in listed for kind in ("interventions", "several") if kind in r}
    layouts = weight_layouts(programs[listed[0]["generate"]], config)
    if recorded:
        documents["recorded.json"] = _json(recorded)
    texts: dict[str, str] = {}
    if train:
        trained, texts, index = training_files(train, export_options.reading, export_options.precision)
        packed |= trained
        documents["training.json"] = _json(index)
    export_options.phase("writing programs")
    programs |= packed
    documents |= {name: program.to_json() for name, program in programs.items()}
    files = {}
    for name, text in documents.items():
        validate("program" if name in programs else name.removesuffix(".json"), json.loads(text), name)
        data = gzip.compress(text.encode(), 9, mtime=0) if name in packed else text.encode()
        (folder / name).write_bytes(data)
        files[name] = _digest(data)
    for name, text in texts.items():
        data = gzip.compress(_json(text).encode(), 9, mtime=0)
        (folder / name).write_bytes(data)
        files[name] = _digest(data)
    export_options.phase("writing weights")
    manifest = {
        "schema": SCHEMA,
        "glgpt": _version(),
        "model": export_options.name,
        "dtype": dtype,
        "parameters": checkpoint.whole.parameter_count,
        "trained_on": export_options.trained_on,
        "source": export_options.source,
        "config": config.fields() | config.shape() | {"n_layer": len(part.blocks)},  # blocks in the page
        "recordings": listed,
        "tokenizer": "tokenizer.json" if tokenizer else None,
        "eos": list(end_of_text(checkpoint.path, config.vocab_size, tokenizer)),
        "reference": "reference.json",
        "recorded": "recorded.json" if recorded else None,
        "tuning": TUNING,
        "activations": split.activations(config) if split else described(config, part),
        "family": family_json(config, [EDIT]),
        **prompts.manifest(),
        "patterns": list(ops.PATTERNS),
        "split": split.manifest(checkpoint) if split else None,
        "training": "training.json" if train else None,
        "files": dict(sorted(files.items())),
        "shards": write_weights(checkpoint, layouts, folder, export_options.shard_size, progress),
    }
    validate("manifest", manifest, "manifest.json")
    (folder / "manifest.json").write_text(_json(manifest), encoding="utf-8")
    return manifest


def _identify(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes one id into index.html and the manifest, by which a page notices that another export has replaced it."""
    page = folder / "index.html"
    text = page.read_text(encoding="utf-8")
    manifest["export_id"] = hashlib.sha256((text + _json(manifest)).encode()).hexdigest()[:32]
    meta = f'<meta name="glgpt-export" content="{manifest["export_id"]}" />'
    page.write_text(text.replace("</title>", f"</title>\n    {meta}", 1), encoding="utf-8")
    (folder / "manifest.json").write_text(_json(manifest), encoding="utf-8")


def _recordings(
    config: ModelConfig, dtype: str, part: Part, split: SplitPage | None
) -> tuple[dict[str, Program], list[dict[str, Any]]]:
    """Returns every program by its file name, and for each recording the names of its files."""
    programs: dict[str, Program] = {}
    listed = []
    whole, tail = part == Part.whole(config), split is not None and split.head
    taps = whole and split is not None
    for recording in page_recordings(dtype):
        kernel = recording.kernel.name
        files = {
            "generate": f"program-{recording.name}.json",
            "capture": f"capture-{recording.name}.json",
            "product": f"probe-{recording.name}.json",
            "row": f"probe-{recording.rows}.json",
        }
        programs[files["generate"]] = generate_program(config, recording, dtype, part, taps=taps, tail=tail)
        programs[files["capture"]] = capture_recording(config, recording, dtype, part, tail)
        if whole:
            files["interventions"] = f"interventions-{recording.name}.bin"
            programs[files["interventions"]] = generate_program(config, recording, dtype, part, PageEdits(config))
            files["several"] = f"several-{recording.name}.bin"
            programs[files["several"]] = several_program(config, recording, dtype, programs[files["generate"]])
        probes = probe_programs(recording, dtype)
        programs |= {files[kind]: probe for kind, probe in probes.items()}
        listed.append({"draw_buffers": recording.draw_buffers, "kernel": kernel, "rows": recording.rows, **files})
    return programs, listed


def validate(schema: str, document: Any, name: str) -> None:
    """Raises GlgptError if a document does not match `viewer/schema/<schema>.schema.json`."""
    for error in _validator(schema).iter_errors(document):
        raise GlgptError(f"{name}: {error.json_path}: {error.message[:200]}")


@functools.cache
def _validator(schema: str) -> Any:
    """Returns a validator that remembers valid `$ref` instances: thousands of passes and views recur in recordings."""
    import jsonschema
    from referencing import Registry, Resource

    plain = jsonschema.Draft202012Validator
    valid: set[bytes] = set()

    def ref(validator: Any, ref: str, instance: Any, schema: Any) -> Iterator[Any]:
        digest = hashlib.sha256(f"{ref} {json.dumps(instance)}".encode()).digest()
        if digest in valid:
            return
        errors = list(plain.VALIDATORS["$ref"](validator, ref, instance, schema))
        if not errors:
            valid.add(digest)
        yield from errors

    def read(name: str) -> Any:
        return json.loads((data_path("viewer/schema") / f"{name}.schema.json").read_text(encoding="utf-8"))

    shared = read("manifest")  # other schemas refer to its definitions
    registry: Registry[Any] = Registry().with_resource(shared["$id"], Resource.from_contents(shared))
    return jsonschema.validators.extend(plain, {"$ref": ref})(read(schema), registry=registry)


def single_page(folder: Path, manifest: dict[str, Any]) -> str:
    """Returns the folder as one HTML text: scripts and styles inline, data as gzipped base64 in script elements.

    Its Content-Security-Policy allows only those scripts and styles, by their SHA-256, and no connections.
    """
    page = (folder / "index.html").read_text(encoding="utf-8")
    inline: dict[str, list[str]] = {"script": [], "style": []}

    def style(match: re.Match[str]) -> str:
        inline["style"].append((folder / match[1]).read_text(encoding="utf-8"))
        return f"<style>{inline['style'][-1]}</style>"

    def script(match: re.Match[str]) -> str:
        inline["script"].append((folder / match[1]).read_text(encoding="utf-8").replace("</script", "<\\/script"))
        return f'<script type="module">{inline["script"][-1]}</script>'

    page = re.sub(r'<link rel="stylesheet"[^>]*href="\./([^"]+)"[^>]*>', style, page)
    page = re.sub(r'<script type="module"[^>]*src="\./([^"]+)"[^>]*></script>', script, page)
    page = re.sub(r'<link rel="(?:modulepreload|manifest)"[^>]*>', "", page)
    if 'src="./' in page:
        raise GlgptError("the built page loads a file that a single file cannot hold")
    page, policies = re.subn(
        r'(http-equiv="Content-Security-Policy"\s+content=")([^"]*)"', lambda m: f'{m[1]}{_policy(m[2], inline)}"', page
    )
    if policies != 1:
        raise GlgptError("the built page has no Content-Security-Policy; rebuild it with: make viewer")
    names = ["manifest.json", *manifest["files"], *(shard["file"] for shard in manifest["shards"])]
    blocks = []
    for name in names:
        data = base64.b64encode(gzip.compress((folder / name).read_bytes(), 6, mtime=0)).decode()
        blocks.append(f'<script type="application/octet-stream" data-file="{name}">{data}</script>')
    return page.replace("</body>", "\n".join(blocks) + "\n</body>")


def _policy(folders: str, inline: dict[str, list[str]]) -> str:
    """Returns a single file's policy, made from a folder's: inline scripts and styles by hash, nothing external."""
    directives = []
    for directive in folders.split(";"):
        name, *sources = directive.split()
        hashes = [hashlib.sha256(text.encode()).digest() for text in inline.get(name.removesuffix("-src"), [])]
        allowed = [source for source in sources if source != "'self'"]
        allowed += [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes]
        directives.append(" ".join([name, *(allowed or ["'none'"])]))
    return "; ".join(directives)


def _digest(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("glgpt")
    except PackageNotFoundError:
        return "0"
