"""Tests commands without modules that Windows lacks, such as `fcntl`, and with OpenGL 4.1, as on macOS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MISSING = ("fcntl", "termios", "resource", "pwd", "grp", "tty", "pty", "readline", "syslog")
START = f"""
import signal, sys
import pytest  # before, since it may want them
for name in {MISSING!r}:
    sys.modules[name] = None
for name in ("pthread_kill", "pthread_sigmask", "setitimer", "SIGKILL", "SIGHUP"):
    if hasattr(signal, name):
        delattr(signal, name)
import glgpt.__main__
from glgpt.cli import main
"""
PLAY = "First Citizen:\nBefore we proceed any further, hear me speak.\n" * 30


def run(code: str, folder: Path) -> str:
    """Returns the output of a process in which the modules of `MISSING` cannot be imported."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", START + code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


@pytest.mark.soak
@pytest.mark.slow
def test_commands_run_without_them(tmp_path: Path) -> None:
    (tmp_path / "play.txt").write_text(PLAY)
    size = (
        "'--n-layer', '1', '--n-embd', '8', '--n-head', '1', '--context', '16', '--batch', '2', '--tokenizer', 'bytes'"
    )
    code = f"""
assert main(['info']) == 0
assert main(['generate', 'To be', '--tokens', '3', '--seed', '1']) == 0
assert main(['dump', 'To be', '--out', 'pictures', '--what', 'h.0.ln_1']) == 0
assert main(['train', 'play.txt', '--out', 'run', '--steps', '2', '--sample-every', '0', {size}]) == 0
assert main(['train', '--resume', 'run', '--steps', '3']) == 0
import glgpt.page.serve, glgpt.page.export, glgpt.bench.engine
assert glgpt.bench.engine.peak_resident() > 0
print('all ran')
"""
    assert run(code, tmp_path).endswith("all ran\n")
    assert not (tmp_path / "run/.lock").exists()


def test_a_run_is_locked_without_them(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from glgpt.system.locks import lock_folder
first = lock_folder(Path('.'))
assert first and lock_folder(Path('.')) is None
first()
again = lock_folder(Path('.'))
assert again
again()
assert list(Path('.').iterdir()) == []
print('locked')
"""
    assert run(code, tmp_path).endswith("locked\n")


WITHOUT = {  # restricts Mesa to the OpenGL features of macOS
    "MESA_GL_VERSION_OVERRIDE": "4.1",
    "MESA_GLSL_VERSION_OVERRIDE": "410",
    "MESA_EXTENSION_OVERRIDE": (
        "-GL_ARB_shading_language_packing -GL_ARB_ES3_compatibility -GL_ARB_ES3_1_compatibility"
        " -GL_ARB_ES3_2_compatibility"
    ),
}
SHADERS = """
import numpy as np
from glgpt import LanguageModel, GPT2Config, Trainer
with LanguageModel.from_pretrained(None, "f16", device="software", kernel="4x4", fetch="textureLod") as model:
    print(repr(model.generate("To be", 12, temperature=0).read()))
with Trainer(GPT2Config(23, 10, 8, 1, 2), batch=2, context=4, device="software", kernel="4x4") as trainer:
    print(round(trainer.step(np.zeros((2, 4), int), np.ones((2, 4), int)), 4))
    version = trainer.device.version
    print(trainer.device.header, trainer.device.packing, version.split()[0], "Mesa" in version)
"""


@pytest.mark.slow
def test_opengl_4_1_without_packing_gives_the_same(tmp_path: Path) -> None:
    """Regression: no shader compiled on macOS."""

    def said(**environment: str) -> list[str]:
        command = [sys.executable, "-c", SHADERS]
        found = subprocess.run(
            command, env={**os.environ, **environment}, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr[-2000:]
        return found.stdout.splitlines()

    usual, held = said(), said(**WITHOUT)
    if not usual[2].endswith("True"):
        pytest.skip("the software driver is not Mesa's")
    assert held[2] == "330 False 4.1 True" and usual[2] != held[2]
    assert usual[:2] == held[:2]
