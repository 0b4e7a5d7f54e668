"""Exports the page without weights: `player.json`, a file for each shape, and the shape's programs for each mix.

A shape is an architecture with its sizes, such as that of SmolLM2-135M, without weights. A mix, such as
Q4_K_M of llama.cpp, defines the type of each tensor of a model's file.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from glgpt import ops
from glgpt.data.books import NO_BOOKS
from glgpt.inference.programs import weight_layouts
from glgpt.models.context import first_context
from glgpt.models.part import Part
from glgpt.models.views import described, family_json
from glgpt.page.built import built_page
from glgpt.page.documents.fields import ListedFile
from glgpt.page.documents.manifest import RecordingFiles
from glgpt.page.documents.player import PageMix, PlayerIndex, ShapeDescription, ShapeEntry
from glgpt.page.manifest import SCHEMA as MANIFEST_SCHEMA
from glgpt.page.manifest import TUNING, compact, page_config, version
from glgpt.page.output.destination import checked_out, copy_viewer, publish, write_listed
from glgpt.page.output.schemas import validate
from glgpt.page.output.selftest import write_selftest
from glgpt.page.player.expected import config_about, gguf_about, parameters
from glgpt.page.player.mixes import HOLDS, Mix, mixes
from glgpt.page.player.packed import packed, sources
from glgpt.page.player.shapes import Shape, listed
from glgpt.page.programs import EDIT, cache_format, main_format, record_page
from glgpt.page.reading import Reading, allow_connections
from glgpt.program.spec import Limits
from glgpt.system.files import workplace
from glgpt.system.memory import uncollected
from glgpt.system.parallel import in_processes, processes_for

SCHEMA: Final = 1  # version of player.json and of a shape's file
# Maximum positions of the caches, if `context` is None. For SmolLM2-135M, caches of 2,048 positions would take 118 MB
# in f16 and 236 MB in f32.
CONTEXT = 1024
FOLDER, ABOUT = "shapes", "shape.bin"  # the folder of all shapes, and the file that describes a shape
SOURCES = "sources.bin"  # GLSL lines from which the shaders of all programs are assembled
LINKS = ("https://huggingface.co", "https://*.huggingface.co", "https://*.hf.co")  # Hugging Face and its file hosts
LEVEL = 9  # compression level of gzip

MEMORY = 300 << 20  # bytes that a process needs to record a mix

Progress = Callable[[int, int], None]
_Written = tuple[PageMix, dict[str, ListedFile]]  # a mix's description, and its files by name


@dataclass(frozen=True)
class PlayerOptions:
    """Defines what a page without weights contains.

    `shapes` are files that each give a shape: a config.json, a model's folder or a GGUF file. If `common`, the page
    also has those of `shapes.common_shapes`. `context` is the number of positions of the caches (None: the model's,
    at most `CONTEXT`), and `cache_dtype` is the caches' format ("auto", "f32" or "f16"). `hosts` are servers from which
    the page may fetch a model by its link, in addition to those of Hugging Face. Mixes are recorded in up to
    `processes` processes, or fewer if there are not enough processors or memory. With more than one process, Python
    imports the main script again in each.
    """

    shapes: Sequence[str | Path] = ()
    common: bool = True
    context: int | None = None
    hosts: Sequence[str] = ()
    cache_dtype: str = "auto"
    processes: int = 1


def export_player(
    out: str | Path, options: PlayerOptions | None = None, *, progress: Progress = lambda done, total: None
) -> PlayerIndex:
    """Writes the page to a folder, or over an earlier export, and returns the content of player.json.

    `progress` is called with (number of mixes recorded, total number of mixes). Raises GlgptError as `export` does, and
    for a shape that cannot be read or that a browser cannot hold.
    """
    options = options or PlayerOptions()
    given, out = out, checked_out(out, False)
    viewer, reading = built_page(), Reading(NO_BOOKS, options.hosts)
    shapes = [(shape, mixes(shape)) for shape in listed(options.shapes, options.common)]
    with workplace(out) as work:
        folder = work / "page"
        copy_viewer(viewer, folder)
        writers = [_ShapeWriter(folder, shape, options) for shape, _ in shapes]
        jobs = [_Job(writers[i], mix, n) for i, (_, found) in enumerate(shapes) for n, mix in enumerate(found)]
        written: dict[int, _Written] = {}
        progress(0, len(jobs))
        processes = min(options.processes, processes_for(len(jobs) // 2, MEMORY))
        for at, result in in_processes(_write_mix, jobs, processes):
            written[at] = result
            progress(len(written), len(jobs))
        entries = []
        for writer in writers:
            own = [written[at] for at, job in enumerate(jobs) if job.writer is writer]
            entries.append(writer.entry(own))
        player: PlayerIndex = {
            "schema": SCHEMA,
            "glgpt": version(),
            "holds": {name: list(types) for name, types in HOLDS.items()},
            "sources": _write(folder / FOLDER / SOURCES, compact(sources())),
            "shapes": entries,
        }
        validate("player", player, "player.json")
        (folder / "player.json").write_text(compact(player), encoding="utf-8")
        write_selftest(folder)
        _finish(folder, reading)
        publish(folder, given, out, work)
    return player


class _ShapeWriter:
    """Writes the programs of a shape's mixes, in any order and in any process, and then the shape's description."""

    def __init__(self, folder: Path, shape: Shape, options: PlayerOptions) -> None:
        context, self.cache_dtype = options.context, options.cache_dtype
        self.folder, self.shape = folder / FOLDER / shape.slug, shape
        self.folder.mkdir(parents=True)
        positions = first_context(shape.config, Limits(), context)
        self.positions = positions if context else min(positions, CONTEXT)
        self.config = shape.config.shortened(self.positions)

    @uncollected()
    def write(self, mix: Mix, number: int) -> _Written:
        """Records and writes the programs of a mix. Equal programs share a file, whose name begins with `number`."""
        caches, lines = cache_format(self.config, mix.formats, self.cache_dtype), sources()
        programs, recordings = record_page(self.config, mix.formats, Part.whole(self.config), None, caches)
        names: dict[str, str] = {}
        written: dict[str, str] = {}
        files: dict[str, ListedFile] = {}
        for name, program in programs.items():
            text, file = packed(program, lines), f"{number}-{Path(name).stem}.bin"
            names[name] = written.setdefault(text, file)
            if names[name] == file:
                files[file] = _write(self.folder / file, text)
        main = programs[recordings[0]["generate"]]
        layouts = weight_layouts(main, self.config)
        page_mix: PageMix = {
            "name": mix.name,
            "dtype": main_format(self.config, mix.formats),
            "formats": {name: layout.dtype for name, layout in layouts.items()},
            "bytes": {"weights": sum(layout.nbytes for layout in layouts.values()), "all": main.nbytes()},
            "recordings": [_renamed(recording, names) for recording in recordings],
        }
        return page_mix, files

    def entry(self, written: Sequence[_Written]) -> ShapeEntry:
        """Writes the shape's description; returns its entry in player.json. `written` has the results of `write`."""
        config, whole = self.config, self.shape.config
        document: ShapeDescription = {
            "schema": SCHEMA,
            "manifest": {
                "schema": MANIFEST_SCHEMA,
                "glgpt": version(),
                "parameters": whole.parameter_count,
                "config": page_config(config),
                "tuning": TUNING,
                "activations": described(config, Part.whole(config)),
                "family": family_json(config, [EDIT]),
                "patterns": list(ops.PATTERNS),
            },
            "parameters": parameters(config, whole),
            "tied": {whole.stored_name(k): whole.stored_name(v) for k, v in whole.tied.items()},
            "buffers": whole.buffers.pattern,
            "prefix": whole.prefix,
            "mixes": [mix for mix, _ in written],
            "files": {name: listed for _, files in written for name, listed in files.items()},
        }
        return {
            "name": self.shape.name,
            "folder": f"{FOLDER}/{self.shape.slug}",
            **_write(self.folder / ABOUT, compact(document)),
            "parameters": whole.parameter_count,
            "positions": [self.positions, whole.n_positions],
            "learned": whole.positions == "absolute",
            "vocab": whole.vocab_size,
            "gguf": gguf_about(whole),
            "config": config_about(whole),
        }


@dataclass(frozen=True)
class _Job:
    """A mix to write; `number` counts the mixes of its shape from 0."""

    writer: _ShapeWriter
    mix: Mix
    number: int


def _write_mix(job: _Job) -> _Written:
    return job.writer.write(job.mix, job.number)


def _renamed(recording: RecordingFiles, names: Mapping[str, str]) -> RecordingFiles:
    """Returns a recording with each file's name replaced by its new name in `names`."""
    return cast("RecordingFiles", {k: names.get(str(v), v) for k, v in recording.items()})


def _write(file: Path, text: str) -> ListedFile:
    """Writes a gzipped file; returns its size and digest."""
    return write_listed(file, gzip.compress(text.encode(), LEVEL, mtime=0))


def _finish(folder: Path, reading: Reading) -> None:
    """Allows the page to fetch models from `LINKS` and `reading`'s servers; marks it as a page without weights."""
    page = folder / "index.html"
    allow_connections(page, dict.fromkeys([*LINKS, *reading.origins()]))
    text = page.read_text(encoding="utf-8")
    mark = '<meta name="glgpt-player" content="player.json" />'
    page.write_text(text.replace("</title>", f"</title>\n    {mark}", 1), encoding="utf-8")
