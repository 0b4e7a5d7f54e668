"""Tests that invalid inputs (pipes, devices, long names, wrong content) are refused at once in one line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from glgpt.cli import main

WIDE = str(Path(__file__).parents[1] / "goldens/wide")
Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, *arguments: str) -> str:
    assert main(list(arguments)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("glgpt: error: ")
    assert said.err.count("\n") == 1 and len(said.err) < 500 and said.err[:-1].isprintable(), said.err
    return said.err


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "command", ["eval pipe", f"compare --model {WIDE} --reference pipe", "data clean pipe --out a"]
)
def test_a_pipe_is_not_waited_for(command: str, capsys: Capture) -> None:
    os.mkfifo("pipe")
    assert "is a named pipe" in refused(capsys, *command.split())


@pytest.mark.parametrize("command", ["eval zero", f"compare --model {WIDE} --reference zero"])
def test_a_link_to_a_device_is_not_read(command: str, capsys: Capture) -> None:
    Path("zero").symlink_to("/dev/zero")
    assert "is a device" in refused(capsys, *command.split())


def test_long_names_are_shortened_and_control_characters_written_out(capsys: Capture) -> None:
    for name in ("x/" * 900, "a\n\x1b[2J.npz"):
        for command in (("eval",), ("compare", "--model", WIDE, "--reference")):
            refused(capsys, *command, name)
    np.savez("r.npz", **{"tokens\x1b[2J": np.array("x")})
    refused(capsys, "compare", "--model", WIDE, "--reference", "r.npz")


def test_a_byte_order_mark_is_no_text(capsys: Capture) -> None:
    Path("plain.txt").write_bytes(b"To be, or not to be.")
    Path("marked.txt").write_bytes(b"\xef\xbb\xbfTo be, or not to be.")
    found = []
    for name in ("plain.txt", "marked.txt"):
        assert main(["eval", name, "--device", "software"]) == 0
        found.append(capsys.readouterr().out.splitlines()[0])
    assert found[0] == found[1]


def test_a_preset_that_no_page_trains_is_refused_before_the_work(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glgpt.page.export.built_page", lambda: pytest.fail("the work began"))
    assert "preset 'huge' is not one of" in refused(capsys, *"export --out page --train --preset huge".split())
    assert "--precision needs --train" in refused(capsys, *"export --out page --precision f16".split())


def test_books_come_by_http_alone(capsys: Capture) -> None:
    assert "is not an http address" in refused(
        capsys, "data", "fetch", "book:1", "--mirror", "file:///etc", "--out", "a.txt"
    )


def test_options_that_have_no_effect_are_refused(capsys: Capture) -> None:
    for more in (["--encoding", "latin-1"], ["--max-size", "1KB"]):
        said = refused(capsys, "data", "fetch", "addition", "--out", "a.txt", *more)
        assert "--encoding and --max-size are for books and URLs; addition comes with glgpt" in said


def test_a_list_of_steps_that_is_none_gets_no_example_of_another_command(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main("data clean a.txt --out b.txt --steps headers,".split())
    assert "'headers,' is not a list of names with commas between them" in capsys.readouterr().err


def test_eval_of_what_is_not_a_text_names_the_command(capsys: Capture) -> None:
    """Regression: for the folder of a run, the error was only that it is not a regular file."""
    for name, files in (("run", ("config.json", "train.json")), ("model", ("config.json",)), ("texts", ("a.txt",))):
        Path(name).mkdir()
        for file in files:
            Path(name, file).touch()
    (Path("run") / "steps/4").mkdir(parents=True)
    for arguments, message in (
        (["run"], "run is a run, not a text file; glgpt eval run --suite scores it on its held-back text, and glgpt"),
        (["run", "--model", "run"], "glgpt eval FILE --model run evaluates it on a text"),
        (["model"], "model is a model, not a text file; glgpt eval FILE --model model"),
        (["texts"], "texts is a folder; give a text file: glgpt eval FILE --model MODEL"),
        (["gpt2"], "text file gpt2 does not exist; the command is glgpt eval FILE --model MODEL"),
        (["gpt2", "--suite"], "text file gpt2 does not exist"),
        (["run@5"], "run has no step 5: its saved step is 4"),
        (["none@5"], "none@5 is not a step of a run: the folder none does not exist"),
    ):
        assert message in refused(capsys, "eval", *arguments)
