"""Defines the options with which the benchmarks in this folder start Chromium."""

from __future__ import annotations

import argparse
import shutil

FLAGS = (
    "--headless=new --use-gl=angle --use-angle=gl-egl --ignore-gpu-blocklist --disable-gpu-sandbox --no-sandbox "
    "--no-first-run --disable-background-networking --disable-component-update --disable-sync "
    "--disable-background-timer-throttling --disable-renderer-backgrounding"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--chromium`, the path of the browser, and `--flags`, its flags as one string."""
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome") or "chromium")
    parser.add_argument("--flags", default=FLAGS, help="the browser's flags, as one string")
