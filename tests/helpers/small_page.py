"""Writes a small page that replaces the built one, so that tests of exports need no Node."""

from __future__ import annotations

from pathlib import Path


def small_page(folder: Path) -> Path:
    """Writes the files of a built page, each of one line, and returns the folder."""
    (folder / "assets").mkdir(parents=True)
    (folder / "embed").mkdir()
    (folder / "embed" / "glgpt.js").write_text("export const open = 0;")
    (folder / "embed" / "glgpt.d.ts").write_text("export declare const open: 0;")
    (folder / "embed" / "index.html").write_text("<script>")
    (folder / "dashboard").mkdir()
    (folder / "dashboard" / "index.html").write_text("<title>dashboard</title>")
    (folder / "assets" / "a.js").write_text("const end = '</script>';")
    (folder / "assets" / "a.css").write_text("body { margin: 0 }")
    (folder / "index.html").write_text(
        "<html><head><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'self'; "
        "style-src 'self'; connect-src 'self'; worker-src 'self' blob:\">"
        '<title>glgpt</title><script type="module" crossorigin src="./assets/a.js"></script>'
        '<link rel="stylesheet" crossorigin href="./assets/a.css"></head><body></body></html>'
    )
    return folder
