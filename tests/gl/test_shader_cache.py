"""Tests that the driver may cache root's shaders, in a folder that no other user can change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glgpt.gl.shader_cache import ENABLED, FOLDER, enable_shader_cache

IS_ROOT = getattr(os, "geteuid", lambda: 1)() == 0
for_root = pytest.mark.skipif(not IS_ROOT, reason="the driver's own cache serves other users")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the cache folder; unsets the driver's variables, which are restored after the test."""
    for name in (ENABLED, FOLDER):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "glgpt"


@for_root
def test_root_has_a_cache(cache: Path) -> None:
    enable_shader_cache()
    folder = cache / "shaders"
    assert (os.environ[ENABLED], os.environ[FOLDER]) == ("1", str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700


@for_root
def test_a_context_enables_it(cache: Path) -> None:
    text = "import os; from glgpt.gl.device import open_device; open_device('software'); print(os.environ['%s'])"
    done = subprocess.run([sys.executable, "-c", text % FOLDER], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(cache / "shaders")


@for_root
def test_a_folder_that_others_can_change_is_not_used(cache: Path) -> None:
    cache.mkdir(parents=True)
    for owner, mode in ((1, 0o755), (0, 0o777)):
        os.chown(cache, owner, owner)
        cache.chmod(mode)
        enable_shader_cache()
        assert ENABLED not in os.environ and FOLDER not in os.environ
        assert not any(cache.iterdir())  # the cache folder stays empty


@for_root
def test_a_folder_to_which_others_can_add_files_is_not_used(cache: Path) -> None:
    """Fails if shaders are cached in a folder with the sticky bit, to which other users can add files."""
    cache.mkdir(parents=True)
    cache.chmod(0o1777)
    enable_shader_cache()
    assert os.environ.pop(ENABLED) == "1" and os.environ.pop(FOLDER) == str(cache / "shaders")
    (cache / "shaders").chmod(0o1777)
    enable_shader_cache()
    assert ENABLED not in os.environ and FOLDER not in os.environ


def test_variables_that_are_set_decide(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENABLED, "0")
    enable_shader_cache()
    assert os.environ[ENABLED] == "0" and FOLDER not in os.environ and not cache.exists()
