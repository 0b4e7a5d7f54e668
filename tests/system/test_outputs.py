"""Tests that every command accepts as `--out` only a new name, an empty folder, or its own earlier output."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from pathlib import Path

import numpy as np
import pytest
from helpers.soak import mostly_soak

from glgpt.cli import main
from glgpt.errors import FileError, quoted
from glgpt.system.files import named_errors, staged_folder, written_whole
from glgpt.system.outputs import output_file, output_folder

WIDE = str(Path(__file__).parents[1] / "goldens/wide")
Capture = pytest.CaptureFixture[str]
FOLDERS = {
    "export": f"export --model {WIDE}",
    "export --embed": f"export --model {WIDE} --embed",
    "dump": f"dump --model {WIDE} --ids 1,2",
    "train": "train play.txt --steps 1 --n-layer 1 --n-embd 8 --n-head 1 --context 16",
    "tokenizer train": "tokenizer train play.txt --vocab 300",
}
FILES = {
    "export --single-file": (f"export --model {WIDE} --single-file", ".html"),
    "logits": (f"logits --model {WIDE} --ids 1,2", ".npz"),
    "data fetch": ("data fetch addition", ""),
    "data clean": ("data clean play.txt", ""),
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder with one file of every kind, and makes it the current folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    Path("play.txt").write_text("To be, or not to be, that is the question. " * 60)
    for suffix in ("", ".html", ".npz"):
        os.mkfifo(f"pipe{suffix}")
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"socket{suffix}")
        Path(f"loop{suffix}").symlink_to(f"loop{suffix}")
        Path(f"to-pipe{suffix}").symlink_to(f"pipe{suffix}")
        Path(f"file{suffix}").write_text("mine")
        Path(f"full{suffix}").mkdir()
        Path(f"full{suffix}/mine").write_text("mine")
    monkeypatch.setattr("glgpt.checkpoint.opening.Checkpoint.open", _no_work)
    monkeypatch.setattr("glgpt.text.files.Text.of_files", _no_work)
    return here


def _no_work(*_: object) -> None:
    raise AssertionError("the work began before --out was checked")


def kinds(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    return {
        str(p.relative_to(folder)): (stat.S_IFMT(p.lstat().st_mode), p.read_bytes() if p.is_file() else None)
        for p in sorted(folder.rglob("*"))
    }


def refused(command: str, out: str, capsys: Capture) -> str:
    try:
        code = main([*command.split(), "--out", out])
    except SystemExit as end:
        code = int(str(end.code))
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.startswith("glgpt: error: --out ") and said.err.count("\n") == 1 and len(said.err) < 400
    assert said.err[:-1].isprintable()
    return said.err


BAD = ["", " ", ".", "..", "/", "pipe", "socket", "loop", "to-pipe", "file", "full", "pipe/x", "file/x/y", "a\0b"]


@pytest.mark.slow
@pytest.mark.parametrize("command", FOLDERS)
def test_a_folder_is_free_or_empty(command: str, place: Path, capsys: Capture) -> None:
    before = kinds(place)
    for out in [*BAD, "x" * 300, "y/" * 3000, "full\n\x1b[2J/../full"]:
        refused(FOLDERS[command], out, capsys)
    assert kinds(place) == before


@pytest.mark.slow
@pytest.mark.parametrize("command", FILES)
def test_a_file_is_free_or_of_the_same_command(command: str, place: Path, capsys: Capture) -> None:
    before = kinds(place)
    words, suffix = FILES[command]
    for out in [
        "",
        " ",
        ".",
        "a\0b" + suffix,
        "x" * 300 + suffix,
        "file/x" + suffix,
        f"pipe/a{suffix}",
        "no/a" + suffix,
    ]:
        if out != "no/a.html":  # an export creates missing folders
            refused(words, out, capsys)
    if suffix:
        refused(words, "free", capsys)
    for name in ("pipe", "socket", "loop", "to-pipe", "file", "full"):
        refused(words, name + suffix, capsys)
    assert kinds(place) == before


@pytest.mark.parametrize("command", ["dump", "export"])
@pytest.mark.parametrize("manifest", [None, "[" * 100_000, '{"glgpt": ' + "[" * 100_000, "[]", "\xff"])
def test_what_is_no_earlier_output_is_refused_whatever_its_manifest(
    command: str, manifest: str | None, place: Path, capsys: Capture
) -> None:
    Path("other").mkdir()
    Path("other/index.html").write_text("mine")
    if manifest is None:
        os.mkfifo("other/manifest.json")
    else:
        Path("other/manifest.json").write_text(manifest)
    before = kinds(place)
    assert "is not empty and is not an earlier" in refused(FOLDERS[command], "other", capsys)
    assert kinds(place) == before


def test_what_is_allowed(place: Path) -> None:
    Path("empty").mkdir()
    Path("link").symlink_to("empty")
    Path("nowhere").symlink_to("not-yet")
    own = ("earlier file", lambda path: path.read_text() == "mine")
    assert output_folder("new/deep") == place / "new/deep"
    assert output_folder("empty") == output_folder("link") == place / "empty"
    assert output_folder("nowhere") == place / "not-yet"
    assert output_folder("full", ("earlier run", lambda _: True)) == place / "full"
    assert output_file("file.npz", ".npz", own) == place / "file.npz"
    assert output_file("a/b.npz", ".npz", own, parents=True) == place / "a/b.npz"
    assert not Path("new").exists()


def test_a_pipe_that_comes_late_is_not_replaced(place: Path) -> None:
    with pytest.raises(FileError, match="is not a file"), written_whole(place / "pipe") as file:
        file.write(b"x")
    with pytest.raises(FileError, match="is not a file"), staged_folder(place / "full") as folder:
        (folder / "mine").write_text("new")
        (folder / "pipe").write_text("new")
        os.mkfifo(place / "full/pipe")
    assert kinds(place)["full/mine"][1] == b"mine" and stat.S_ISFIFO((place / "full/pipe").lstat().st_mode)


def test_a_full_disk_is_named_and_leaves_nothing(place: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = kinds(place)
    with pytest.raises(OSError, match=r"No space left on device: '.*out\.npz'"), written_whole(place / "out.npz"):
        full()
    with pytest.raises(OSError, match=r"No space left on device: '.*new/deep'"), staged_folder(place / "new/deep"):
        full()
    assert kinds(place) == before


@pytest.mark.slow
@pytest.mark.parametrize("command", mostly_soak(["logits", "dump", "tokenizer train"], ("dump",)))
def test_a_file_that_cannot_grow_is_named(command: str, place: Path) -> None:
    """Simulates a full disk: a separate process, which has a limit on file sizes, runs the command.

    The process writes no compiled Python files (-B), since the limit would also truncate them.
    """
    import subprocess
    import sys

    import matplotlib.font_manager  # writes its cache now, since the limited process cannot  # noqa: F401

    words = f"logits --model {WIDE} --ids 1,2" if command == "logits" else FOLDERS[command]
    out = "out.npz" if command == "logits" else "out"
    limit = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); import glgpt.cli as c;"
    code = limit + "resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700)); sys.exit(c.main(sys.argv[1:]))"
    Path("play.txt").write_text(Path(__file__).read_text())
    before = kinds(place)
    found = subprocess.run(
        [sys.executable, "-B", "-c", code, *words.split(), "--out", out], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2 and found.stdout == ""
    assert "out" in found.stderr and "File too large" in found.stderr and found.stderr.count("\n") == 1, found.stderr
    assert kinds(place) == before


def test_an_earlier_output_is_replaced(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(place)
    for _ in range(2):
        assert main(["logits", "--model", WIDE, "--ids", "1,2", "--out", "out.npz"]) == 0
        assert main(["dump", "--model", WIDE, "--ids", "1,2", "--out", "out", "--what", "h.0.ln_1"]) == 0
    assert main(["dump", "--model", WIDE, "--ids", "1,2", "--out", "out", "--what", "h.1.ln_1"]) == 0
    assert sorted(p.name for p in Path("out").iterdir()) == ["h.1.ln_1.png", "manifest.json"]
    capsys.readouterr()
    Path("out/notes.txt").write_text("mine")
    assert "holds notes.txt, which is not part of a dump" in refused(FOLDERS["dump"], "out", capsys)
    assert sorted(p.name for p in Path("out").iterdir()) == ["h.1.ln_1.png", "manifest.json", "notes.txt"]
    np.savez("mine.npz", a=np.zeros(2))
    assert "exists and is not a file of logits" in refused(f"logits --model {WIDE} --ids 1,2", "mine.npz", capsys)


def test_quoted_text_is_short_and_printable() -> None:
    assert quoted("a\x1b[2J\nb\u202e\x9b") == "a\\x1b[2J\\nb\\u202e\\x9b"
    assert quoted("caf\u00e9 日") == "caf\u00e9 日"
    assert len(quoted("x" * 5000)) == 80 and quoted("a" * 100 + "z", 11) == "aaaaaa…aaaz"


def test_what_stopped_a_copy_of_many_files_is_said_of_the_folder(tmp_path: Path) -> None:
    """Regression: the message for a full disk contained a number: `out: [Errno 28] No space left on device`."""
    why = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere/half")
    with pytest.raises(OSError, match="No space left") as caught, named_errors(tmp_path / "out"):
        raise shutil.Error([("a", "b", str(why))])
    assert (caught.value.strerror, caught.value.filename) == (os.strerror(errno.ENOSPC), str(tmp_path / "out"))


def test_an_interrupt_while_a_folder_is_replaced_keeps_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "own/out"
    out.mkdir(parents=True)
    (out / "earlier.txt").touch()
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if target.name == "old":
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), staged_folder(out, replace=True) as folder:
        (folder / "later.txt").touch()
    assert [path.name for path in (tmp_path / "own").rglob("*")] == ["out", "earlier.txt"]
