"""Tests the command line: options, exit codes, and output on stdout and stderr."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import Capture, refused

import glgpt.cli.parser
from glgpt.cli import main
from glgpt.cli.option_types import origin, seed, size
from glgpt.cli.parser import build_parser
from glgpt.cli.progress import Phases, progress
from glgpt.inference.model import LanguageModel
from glgpt.inspection import info

ROOT = Path(__file__).parents[2]
WIDE = str(Path(__file__).parents[1] / "goldens/wide")
COMMANDS = ("generate", "logits", "compare", "dump", "eval", "info", "bench")


def command(*args: str, **options: object) -> subprocess.Popen[bytes]:
    """Starts the command as a separate process."""
    pipe = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
    return subprocess.Popen([sys.executable, "-m", "glgpt", *args], **pipe)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_parses(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert all(option in text for option in ("--device", "--dtype", "--kernel", "--fetch", "--storage", "--json"))
    lines = text.partition("examples:\n")[2].strip().splitlines()
    examples = [shlex.split(re.split(" [<>] ", line)[0], comments=True) for line in lines]
    assert examples
    for words in examples:
        assert words[:2] == ["glgpt", name]
        assert callable(build_parser().parse_args(words[1:]).run)


def test_the_command_alone_says_what_it_takes(capsys: Capture) -> None:
    assert "COMMAND" in refused(capsys)
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out.startswith("glgpt ")


@pytest.mark.parametrize(
    "args",
    [
        "--tokens -1", "--tokens x", "--tokens 1.5", "--temperature -1", "--temperature nan", "--temperature inf",
        "--top-k -1", "--top-k 1.5", "--top-p -1", "--top-p 1.1", "--top-p nan", "--seed -1", "--seed x", "--ids 1,x",
        "--ids -1", "--dtype f64", "--kernel 2x2", "--fetch texture", "--storage half", "--device cpu", "--device -1",
        "--max-texture-memory 2XB", "--max-texture-memory -1", "--unknown", "--toke 5", "one two",
        "--max-texture-memory 1e400", "--tokens 1" + 5000 * "0",
    ],
)  # fmt: skip
def test_bad_values_are_refused(args: str, capsys: Capture) -> None:
    said = refused(capsys, "generate", *args.split())
    assert "see glgpt" in said and len(said) < 600


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["generate", ""], "prompt is empty"),
        (["generate", "x", "--ids", "1"], "give one of them"),
        (["generate", "x", "--samples", "99999999999999"], "at most 10,000"),
        (["generate", "x" * 3000], "context of shakespeare holds 256"),
        (["generate", "--ids", "0,1024"], "1024"),
        (["generate", "--device", "97"], "97"),
        (["generate", "--max-texture-memory", "1MiB"], "max-texture-memory"),
        (["generate", "--model", "/nonexistent/model"], "/nonexistent/model"),
        (["generate", "--model", WIDE, "To be"], "--ids"),
        (["logits", "--model", WIDE, "--out", "x.npz"], "prompt is empty"),
        (["logits", "--model", WIDE, "--ids", "1", "--out", "x.txt"], ".npz"),
        (["logits", "--model", WIDE, "--ids", "1", "--out", "/nonexistent/x.npz"], "/nonexistent/x.npz"),
        (["compare", "--model", WIDE, "--reference", "/nonexistent.npz"], "/nonexistent.npz"),
        (["dump", "--model", WIDE, "--ids", "1", "--out", __file__], "is a file"),
        (["eval", "--model", WIDE, "/nonexistent.txt"], "/nonexistent.txt"),
        (["eval", "--model", "shakespeare", __file__, "--window", "257"], "257"),
        (["info", "--model", "/nonexistent/model"], "/nonexistent/model"),
        (["info", "--model", WIDE, "--max-texture-memory", "1KiB"], f"{WIDE}: its textures need"),
    ],
)
def test_bad_input_is_one_clear_line(args: list[str], message: str, capsys: Capture) -> None:
    assert message in refused(capsys, *args)


def test_text_that_is_no_utf8_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert "the prompt is not UTF-8" in refused(capsys, "generate", "a\udcffb")
    (tmp_path / "latin").write_bytes("caf\u00e9 is".encode("latin-1"))
    assert "not UTF-8 text (byte 3)" in refused(capsys, "eval", "--model", "shakespeare", str(tmp_path / "latin"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("0", 0), ("123", 123), ("2GiB", 2 << 30), ("1.5 MiB", 3 << 19), ("3kb", 3000), ("2e9", 2 * 10**9), ("7B", 7)],
)
def test_sizes(text: str, wanted: int) -> None:
    assert size(text) == wanted


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e", "1 2", "0x10", "1TiBs"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size(text)


@pytest.mark.parametrize("text", ["https://example.org/", "HTTPS://Example.org:443", "https://example.org:"])
def test_an_origin_is_that_which_browsers_send(text: str) -> None:
    assert origin(text) == "https://example.org"


@pytest.mark.parametrize(
    "text", ["example.org", "https://\udcff", "https://a b", "https://x/y", "https://u@x", "ftp://x"]
)
def test_what_is_not_an_origin_is_refused(text: str) -> None:
    """Regression: a host with bytes that are not ASCII was accepted, although no browser sends such an origin."""
    with pytest.raises(argparse.ArgumentTypeError, match="is not an origin"):
        origin(text)


def test_generate_prints_text_to_stdout_and_speed_to_stderr(capsys: Capture) -> None:
    assert main(["generate", "ROMEO:\nIs it", "--tokens", "10", "--temperature", "0"]) == 0
    out, err = capsys.readouterr()
    assert out == "ROMEO:\nIs it not so, and I'll be soon,\n"
    assert "prefill 5 tokens at " in err and "decode 9 tokens at " in err and "seed" not in err


def test_generate_prints_no_speed_of_a_single_token(capsys: Capture) -> None:
    assert main(["generate", "x", "--tokens", "2", "--temperature", "0"]) == 0
    assert capsys.readouterr().err.endswith("prefill 1 token, decode 1 token\n")


@pytest.mark.slow
def test_generate_tells_the_seed_it_drew(capsys: Capture) -> None:
    assert main(["generate", "--tokens", "12"]) == 0
    out, err = capsys.readouterr()
    assert main(["generate", "--tokens", "12", "--seed", err.split("seed ")[1].strip()]) == 0
    assert capsys.readouterr().out == out
    assert not out.startswith("\n\n")


def test_a_seed_may_have_as_many_digits_as_in_python() -> None:
    assert seed(str(2**128 - 1)) == 2**128 - 1
    with pytest.raises(argparse.ArgumentTypeError, match="is not an integer from 0 to 3402823669"):
        seed("1" + 39 * "0")


def test_generate_says_when_a_text_outgrows_the_context(capsys: Capture) -> None:
    ids = ",".join(["3"] * 39)
    assert main(["generate", "--model", WIDE, "--ids", ids, "--temperature", "0", "--tokens", "30"]) == 0
    out, err = capsys.readouterr()
    assert "the text reached the context length of 40 tokens twice: the older half was dropped\n" in err
    assert out.startswith("3 3 3 ")


def test_generate_as_json(capsys: Capture) -> None:
    args = ["generate", "ROMEO:\nIs it", "--tokens", "40", "--temperature", "0", "--stop", "not be", "--json"]
    assert main(args) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert (figures["prompt"], figures["text"], figures["stopped"], err) == (
        "ROMEO:\nIs it", " not so, and I'll be soon,\nAnd I will ", "text", ""
    )  # fmt: skip
    assert figures["decode_tokens"] == len(figures["ids"]) - 1 and figures["decode_tokens_per_s"] > 0


def test_a_prompt_from_stdin_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("To bé\n".encode())))
    assert main(["generate", "-", "--tokens", "0"]) == 0
    assert capsys.readouterr().out == "To bé\n\n"


def test_zero_tokens_and_no_tokenizer(capsys: Capture) -> None:
    assert main(["generate", "--model", WIDE, "--ids", "1 2", "--tokens", "0"]) == 0
    assert capsys.readouterr().out == "1 2\n"


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--kernel 4x4", "--kernel 8x4", "--fetch texelFetch", "--storage uint"])
def test_every_choice_gives_the_same_text(option: str, capsys: Capture) -> None:
    args = ["generate", "--model", WIDE, "--ids", "1,2,3,4,5,6,7,8,9", "--tokens", "12", "--temperature", "0"]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert main([*args, *option.split(), "--device", "software"]) == 0
    assert capsys.readouterr().out == out


def test_logits_of_ids(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "l.npz"
    assert main(["logits", "--model", WIDE, "--ids", "1,2,3", "--out", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(file), "shape": [3, 130]}
    with np.load(file) as stored, LanguageModel.from_pretrained(WIDE) as model:
        assert stored["tokens"].tolist() == [1, 2, 3]
        assert np.array_equal(stored["logits"], model.logits([1, 2, 3]))


def test_eval_prints_its_figures(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "text").write_text("To be, or not to be: that is the question.\n")
    assert main(["eval", "--model", "shakespeare", str(tmp_path / "text"), "--window", "8", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["window"] == 8 and 3 < figures["nats_per_token"] < 6
    assert main(["eval", "--model", "shakespeare", str(tmp_path / "text"), "--window", "8"]) == 0
    assert capsys.readouterr().out.startswith(f"{figures['nats_per_token']:.4f} nats/token, ")


def test_info_announces_the_memory_that_a_model_then_takes(capsys: Capture) -> None:
    assert main(["info", "--model", WIDE, "--json", "--max-texture-memory", "1GiB"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["limits"]["max_draw_buffers"] >= 4 and figures["choice"]["why"]
    with LanguageModel.from_pretrained(WIDE) as model:
        assert model.texture_bytes == figures["model"]["texture_bytes"]
    assert main(["info", "--model", WIDE]) == 0
    text = capsys.readouterr().out
    label, fetch = figures["choice"]["label"], figures["choice"]["fetch"]
    assert figures["device"]["renderer"] in text
    assert f"\nkernel      {label} with {fetch}" in text and f"\n  {label} {fetch} " in text
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.endswith(" ms")]
    assert sorted(rows) == sorted(2 * ["4x4", "4x4-contiguous", "4x8", "8x4", "8x4-contiguous"])


@pytest.mark.parametrize(("contiguous", "way"), [(0, "strided"), (4, "contiguous")])
def test_info_says_how_one_row_products_take_their_columns(contiguous: int, way: str) -> None:
    figures = info.describe(device="software")
    probe = {"4x4 textureLod": 2.0, "contiguous textureLod": 3.0, "strided textureLod": 4.0, "strided texelFetch": 9.0}
    figures["choice"] |= {"contiguous": contiguous, "fetch": "textureLod", "probe_ms": probe}
    text = info.render(figures)
    assert f"\none-row products: {way} columns (strided 4.00 ms, contiguous 3.00 ms)" in text and "9.00" not in text


@pytest.mark.slow
def test_an_interrupt_leaves_the_text_so_far_and_no_traceback() -> None:
    with command("generate", "To be", "--tokens", "250", "--seed", "1") as process:
        assert process.stdout and process.stderr
        start = b""
        while len(start) < 40:  # waits for the middle of the text
            start += os.read(process.stdout.fileno(), 5)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (start + rest).startswith(b"To be") and (start + rest).endswith(b"\n")
    assert b"Traceback" not in err


def test_an_interrupt_while_the_commands_load_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupted(command: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(glgpt.cli.parser, "build_parser", interrupted)
    assert main(["info"]) == 130
    assert capsys.readouterr() == ("", "glgpt: interrupted\n")
    code = "import sys, glgpt.cli; print('glgpt.cli.commands' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error() -> None:
    with command("generate", "To be", "--tokens", "100") as process:
        assert process.stdout and process.stderr
        os.read(process.stdout.fileno(), 5)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert err == b""


@pytest.mark.slow
def test_generate_loads_nothing_it_does_not_use() -> None:
    code = (
        "import sys; from glgpt.cli import main; assert main(['generate', 'To', '--tokens', '1']) == 0;"
        "print([n for n in ('matplotlib', 'PIL', 'huggingface_hub', 'tqdm', 'torch', 'requests') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_progress_is_shown_to_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = type("Terminal", (io.StringIO,), {"isatty": lambda _: True})

    def shown(stream: io.StringIO) -> str:
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("drawing", "file", delay=0) as show:
            for done in (1, 2, 3):
                if show:
                    show(done, 3)
        return stream.getvalue()

    assert shown(io.StringIO()) == "" and "drawing" in shown(terminal())
    monkeypatch.setattr(sys, "stderr", stream := terminal())
    with progress("reading", "token", delay=0.05):  # a task that reports no progress
        time.sleep(0.5)
    assert "reading…" in stream.getvalue() and stream.getvalue().endswith("\r\x1b[K")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_terminal_of_0_columns_shows_the_bar_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a terminal that reports no size, such as that of `script`, showed no progress."""
    main_end, other_end = os.openpty()  # has 0 columns and rows
    with open(other_end, "w", encoding="utf-8") as stream:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("drawing", "file", delay=0) as show:
            for done in (1, 2, 3):
                time.sleep(0.15)  # the bar is drawn at most every 0.1 s
                assert show
                show(done, 3)
    found = b""
    with contextlib.suppress(OSError):  # raised after the last byte, since the other end is closed
        while data := os.read(main_end, 10_000):
            found += data
    os.close(main_end)
    text = found.decode()
    assert "drawing: 100%" in text and "\n" not in text and max(map(len, text.split("\r"))) < 80


def test_phases_are_lines_where_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: an export into a pipe printed nothing for minutes."""
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with Phases("B") as phases:
        phases.begin("exporting")
        phases.show(1, 2)
        phases.begin("writing the weights")
    assert stream.getvalue() == "exporting…\nwriting the weights…\n"


def options_with_values() -> list[tuple[list[str], str]]:
    """Returns every option that takes a value, with the other arguments that its command needs."""
    needs = {
        "eval": ["file"], "dump": ["--out", "o"], "logits": ["--out", "o"], "compare": ["--reference", "r"],
        "tokenizer train": ["file", "--vocab", "300", "--out", "o"], "export": ["--out", "o"], "serve": ["folder"],
    }  # fmt: skip

    def walk(parser: argparse.ArgumentParser, words: list[str]) -> list[tuple[list[str], str]]:
        found = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found += [pair for name, sub in action.choices.items() for pair in walk(sub, [*words, name])]
            elif action.option_strings and action.nargs != 0:
                found.append(([*words, *needs.get(" ".join(words), [])], action.option_strings[-1]))
        return found

    return walk(build_parser(), [])


def test_a_start_adds_the_parser_of_its_command_only():
    def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
        return next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))

    every = commands(build_parser())
    assert [*every] == [*glgpt.cli.parser.COMMANDS] == [*commands(build_parser("--help"))]
    for name in every:
        alone = commands(build_parser(name))
        assert [*alone] == [name] and alone[name].format_help() == every[name].format_help()


@pytest.mark.parametrize("value", ["--", "\x1b[2J\n\x07", "x" * 5000, "9" * 500, "-"])
def test_any_value_of_any_option_is_taken_or_refused_in_one_line(value: str, capsys: Capture) -> None:
    parser, tried = build_parser(), 0
    for words, option in options_with_values():
        try:
            found = parser.parse_args([*words, f"{option}={value}"])
        except SystemExit as end:
            err = capsys.readouterr().err
            assert end.code == 2 and err.count("\n") == 1 and err[:-1].isprintable() and len(err) < 600, (words, option)
        else:
            assert getattr(found, option.removeprefix("--").replace("-", "_")) in (value, [value]), (words, option)
        tried += 1
    assert tried > 90


def test_what_is_wrong_is_quoted(capsys: Capture) -> None:
    for args in (
        ["eval", "--model", "shakespeare", "a\n\x1b[2Jb"],
        ["info", "--model", "/a\x1b\x07b"],
        ["serve", "x" * 3000],
    ):
        assert refused(capsys, *args)[:-1].isprintable()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_named() -> None:
    for args in (["info", "--json"], ["generate", "To be", "--tokens", "3"]):
        with Path("/dev/full").open("w") as full, command(*args, stdout=full) as process:
            assert process.communicate(timeout=120)[1] == b"glgpt: error: stdout: No space left on device\n"
        assert process.returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate", "--tmperature"], "unrecognized arguments: --tmperature; did you mean --temperature?"),
        (["generate", "--temp=1"], "unrecognized arguments: --temp=1; did you mean --temperature? (see glgpt generate"),
        (["generate", "a", "b", "c"], "glgpt generate: error: unrecognized arguments: b c (see glgpt generate --help)"),
        (["export", "--tokens", "5"], "unrecognized arguments: --tokens (see glgpt export --help)"),
        (["data", "fetch", "x", "--ou", "y"], "--ou; did you mean --out? (see glgpt data fetch --help)"),
        (["split", "serve", "--block", "1"], "did you mean --blocks? (see glgpt split serve --help)"),
        (["genrate"], "invalid choice: 'genrate' (did you mean generate? choose from generate, chat, api"),
        (["generate", "--dtype", "f15"], "invalid choice: 'f15' (did you mean f16? choose from f32, f16"),
        (["--foo"], "glgpt: error: unrecognized arguments: --foo (see glgpt --help)"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_mistyped_word_names_the_closest_and_the_right_help(words: list[str], said: str, capsys: Capture) -> None:
    """Regression: for an option of `generate`, the error named the help of `glgpt`, which lists no such option."""
    assert said in refused(capsys, *words)


@pytest.mark.parametrize("options", [["--temperature", "1e38"], ["--repetition-penalty", "1e300"]], ids=" ".join)
def test_sampling_options_are_checked_before_the_model_loads(options: list[str], capsys: Capture) -> None:
    option, value = options
    assert f"{option[2:].replace('-', ' ')} is {float(value):g}; it must be" in refused(
        capsys, "generate", "x", "--model", "no/such model", *options
    )


def test_the_prompt_may_follow_options_and_the_model_is_an_option(capsys: Capture) -> None:
    parse = build_parser().parse_args
    for words, model, prompt in (
        ("logits --out o text", None, "text"), ("logits text --model m --out o", "m", "text"),
        ("logits --ids 1 --model m --out o", "m", None), ("dump --out o --raw text --model m", "m", "text"),
        ("generate text", None, "text"), (f"generate {WIDE}", None, WIDE), ("generate --seed 1 -", None, "-"),
        ("logits --model m --out o -- -text", "m", "-text"),
    ):  # fmt: skip
        found = parse(words.split())
        assert (found.model, found.prompt) == (model, prompt), words
    assert parse(["eval", "--model", "m", "f"]).file == parse(["eval", "f", "--model", "m"]).file == "f"
    for words, said in (
        ("generate a b", "unrecognized arguments: b"), ("logits m text --out o", "unrecognized arguments: text"),
        ("eval m f", "unrecognized arguments: f"), ("eval --model m", "the following arguments are required: FILE"),
        ("eval --model m a b", "b (see glgpt eval"), ("export m --out o", "unrecognized arguments: m"),
        ("compare m --reference r", "unrecognized arguments: m"), ("split serve m", "unrecognized arguments: m"),
    ):  # fmt: skip
        assert said in refused(capsys, *words.split()), words


def test_every_stop_text_counts(capsys: Capture) -> None:
    args = ["generate", "ROMEO:\nIs it", "--tokens", "40", "--temperature", "0", "--stop", "not be", "--stop", "I'll"]
    assert main([*args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == " not so, and "


def test_a_penalty_and_a_bias_change_the_text(capsys: Capture) -> None:
    args = ["generate", "--ids", "1,2,3", "--model", WIDE, "--tokens", "9", "--temperature", "0", "--json"]
    texts = []
    for more in (
        [],
        ["--repetition-penalty", "1e9"],
        ["--logit-bias", "5=100"],
        ["--logit-bias", "5=100", "--samples", "2"],
    ):
        assert main([*args, *more]) == 0
        said = json.loads(capsys.readouterr().out)
        texts.append(said["samples"][1]["ids"] if "samples" in said else said["ids"])
    plain, varied, same, beside = texts
    assert len({1, 2, 3, *varied}) == 12 > len({1, 2, 3, *plain}) and same == beside == [5] * 9
    for wrong in ("5", "x=1", "-1=2", "5=x", "5=inf"):
        assert "is not a token id and a number" in refused(capsys, *args, f"--logit-bias={wrong}")
    assert "names id 999, and the vocabulary has" in refused(capsys, *args[:-1], "--logit-bias", "999=1")


@pytest.mark.slow
def test_samples_are_those_of_their_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if a sample is not the text that a separate run with its seed writes, or if samples are out of order."""
    asked = ["generate", "To be", "--tokens", "6", "--device", "software"]
    assert main([*asked, "--seed", "7", "--samples", "3", "--json"]) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    assert [sample["seed"] for sample in samples] == [7, 8, 9]
    assert main([*asked, "--seed", "7", "--samples", "3"]) == 0
    shown = capsys.readouterr()
    for i, sample in enumerate(samples, 1):
        assert main([*asked, "--seed", str(sample["seed"]), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["text"] == sample["text"]
        assert f"--- sample {i} of 3, seed {sample['seed']}\nTo be{sample['text']}\n" in shown.out
    assert shown.err.startswith("3 samples, ")
