"""Checks the folder or file that a page is exported to, and replaces an earlier export there in one step."""

from __future__ import annotations

import re
from pathlib import Path

from glgpt.errors import FileError, quoted
from glgpt.system.files import holds_manifest
from glgpt.system.outputs import output_file, output_folder

WRITTEN = re.compile(  # names that any export writes directly in its folder
    r"assets|index\.html|preview\.png|sw\.js|glgpt\.(?:js|d\.ts)|(manifest|recorded|reference|tokenizer|training)\.json"
    r"|player\.json|shapes|(capture|probe|program)-[\w-]+\.json|(interventions|several|training|weights)-[\w-]+\.bin"
)


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
    return (
        any(holds_manifest(folder, {"glgpt"}, name) for name in ("manifest.json", "player.json"))
        and (folder / "index.html").is_file()
    )


def swap(new: Path, out: Path, old: Path) -> None:
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
