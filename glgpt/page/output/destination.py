"""Checks the path to which a page is exported, and moves the finished page there."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from glgpt.page.documents.fields import ListedFile
from glgpt.system.files import holds_manifest, swap
from glgpt.system.outputs import output_file, output_folder, would_be_deleted

WRITTEN = re.compile(  # names of the files and folders that an export writes directly in its folder
    r"assets|index\.html|preview\.png|sw\.js|glgpt\.(?:js|d\.ts)|(manifest|recorded|reference|tokenizer|training)\.json"
    r"|player\.json|selftest\.bin|shapes|(capture|probe|program)-[\w-]+\.json"
    r"|(interventions|masked|several|training|weights)-[\w-]+\.bin"
)


OTHERS = ("embed", "dashboard")  # folders of the built page that an export omits


def checked_out(out: str | Path, single_file: bool) -> Path:
    """Returns the path to write a page to. Raises FileError unless it is new, an empty folder or an earlier export."""
    if single_file:
        return output_file(out, ".html", ("earlier export", _is_single_page), parents=True)
    path = output_folder(out, ("earlier export", _is_export))
    if path.is_dir() and (other := next((p.name for p in sorted(path.iterdir()) if not WRITTEN.fullmatch(p.name)), "")):
        raise would_be_deleted(out, other, "an export")
    return path


def _is_single_page(file: Path) -> bool:
    with file.open("rb") as opened:
        return b"<title>glgpt</title>" in opened.read(4096)


def _is_export(folder: Path) -> bool:
    return (
        any(holds_manifest(folder, {"glgpt"}, name) for name in ("manifest.json", "player.json"))
        and (folder / "index.html").is_file()
    )


def copy_viewer(viewer: Path, folder: Path) -> None:
    """Copies the built page into a new folder."""
    shutil.copytree(viewer, folder, ignore=lambda at, _: OTHERS if Path(at) == viewer else ())


def write_listed(file: Path, data: bytes) -> ListedFile:
    """Writes a file of an export; returns its size and digest for a list of files."""
    file.write_bytes(data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def publish(folder: Path, given: str | Path, out: Path, work: Path) -> None:
    """Moves a finished page to `out`, which `checked_out` returned for the path `given`.

    Raises FileError if there is now something other than an export at `out`.
    """
    folder.chmod(0o755)
    checked_out(given, single_file=False)  # again: another program may have written to the path since
    swap(folder, out, work)
