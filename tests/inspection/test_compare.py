"""Tests comparisons with references: the contents of a reference, and how differences are measured and located."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.soak import mostly_soak

from glgpt.checkpoint.opening import Checkpoint
from glgpt.cli import main
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.inspection.compare import compare
from glgpt.inspection.reference import Case, load_reference, shared_start
from glgpt.program.tolerance import Tolerance

GOLDENS = Path(__file__).parents[1] / "goldens"
NAMES = sorted(path.parent.name for path in GOLDENS.glob("*/reference.npz"))
WIDE = GOLDENS / "wide"
Array = np.ndarray[Any, Any]


def wide_arrays() -> dict[str, Array]:
    with np.load(WIDE / "reference.npz") as file:
        return {name: file[name] for name in file.files}


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    code = main(["compare", "--model", *map(str, args)])
    return code, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("golden", mostly_soak(NAMES, ["bf16", "dhead3-relu", "llama3-untied"]))
def test_goldens_agree_in_every_intermediate(golden: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = GOLDENS / golden
    code, out = run(capsys, folder, "--reference", folder / "reference.npz", "--activations", "--json")
    figures = json.loads(out)
    assert code == 0 and figures["within"]
    case = figures["cases"][0]
    with Checkpoint.open(folder) as checkpoint:
        assert len(case["activations"]) == len(checkpoint.config.activations)
    assert max(case["kl"]) < 1e-9
    assert case["greedy"][0] == case["greedy"][1]


def test_the_first_intermediate_that_is_off_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = wide_arrays()
    ours = float(arrays["h.1.mlp.act"][5, 77])
    for name in ("h.1.mlp.act", "h.1.mlp.out", "h.1.resid_post"):
        arrays[name][5, 77 % arrays[name].shape[1]] += 0.25
    np.savez(tmp_path / "off.npz", **arrays)
    code, out = run(capsys, WIDE, "--reference", tmp_path / "off.npz", "--activations")
    assert code == 1
    line = next(line for line in out.splitlines() if "first beyond the tolerance" in line)
    assert "h.1.mlp.act[5, 77]" in line and "differs by 0.25" in line
    assert f"reference {ours + 0.25:.4f}"[:-1] in line and f"glgpt {ours:.4f}"[:-1] in line
    code, out = run(capsys, WIDE, "--reference", tmp_path / "off.npz")
    assert code == 0  # the logits agree


def test_logits_off_beyond_tolerance_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = {name: wide_arrays()[name] for name in ("tokens", "logits")}
    arrays["logits"][11, 3] += 5e-3
    np.savez(tmp_path / "off.npz", **arrays)
    code, out = run(capsys, WIDE, "--reference", tmp_path / "off.npz")
    assert code == 1 and "BEYOND" in out and "logits[11, 3]" in out
    assert run(capsys, WIDE, "--reference", tmp_path / "off.npz", "--atol", "1e-2")[0] == 0


def test_another_greedy_continuation_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = wide_arrays()
    arrays["greedy"][-2] ^= 1
    np.savez(tmp_path / "off.npz", **arrays)
    code, out = run(capsys, WIDE, "--reference", tmp_path / "off.npz")
    wanted = len(arrays["greedy"]) - shared_start(arrays["tokens"].tolist(), arrays["greedy"].tolist())
    assert code == 1 and f"{wanted - 2} of {wanted}" in out


def test_another_greedy_continuation_that_ties_is_within() -> None:
    """Fails if another token counts as an error although rounding decides which of two tokens is more likely."""
    with LanguageModel.from_pretrained(WIDE) as model:
        ids = [1, 2, 3]
        logits = model.logits(ids)
        best, second = np.argsort(-logits[-1])[:2].tolist()
        case = Case("0", ids, {"logits": logits}, [*ids, second])
        near, far = (compare(model, case, Tolerance(relative)) for relative in (1.0, 1e-6))
        assert logits[-1][best] > logits[-1][second]
    assert near.greedy == far.greedy == (0, 1)
    assert near.tie and near.within and not far.within


def test_the_kl_divergence_has_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if rounded weights are only checked by errors of logits, not also by the next token's distribution."""
    args = (WIDE, "--reference", WIDE / "reference.npz", "--dtype", "q8")
    code, out = run(capsys, *args)
    assert code == 0 and "mean KL 0.05): logits " in out.splitlines()[-1]
    code, out = run(capsys, *args, "--kl", "1e-9")
    assert code == 1 and out.splitlines()[-1].startswith("BEYOND tolerance (relative error ")


def test_written_logits_are_a_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "to-be.npz"
    assert main(["logits", "--model", "shakespeare", "To be, or not", "--out", str(file)]) == 0
    with np.load(file) as stored:
        assert stored["logits"].shape == (len(stored["tokens"]), 1024)
    assert [path.name for path in tmp_path.iterdir()] == ["to-be.npz"]
    assert run(capsys, "shakespeare", "--reference", file, "--atol", "0", "--rtol", "0")[0] == 0


def test_transformers_layout_is_taken_apart(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    hidden, attention = random.random((3, 4, 6)), random.random((2, 2, 4, 4))
    tokens, logits = np.arange(4), random.random((4, 9))
    np.savez(
        tmp_path / "r.npz",
        **{"0.tokens": tokens + 1, "0.logits": logits, "1.tokens": tokens, "1.logits": logits},
        **{"1.hidden_states": hidden, "1.attention": attention, "greedy": np.array([0, 1, 2, 3, 8])},
    )
    first, second = load_reference(tmp_path / "r.npz")
    assert (first.name, first.tokens, list(first.arrays), first.greedy) == ("0", [1, 2, 3, 4], ["logits"], None)
    assert second.greedy == [0, 1, 2, 3, 8]
    assert set(second.arrays) == {
        "logits", "embed", "h.0.resid_post", "ln_f", "h.0.attn.pattern", "h.1.attn.pattern"
    }  # fmt: skip
    for name, wanted in (("embed", hidden[0]), ("h.0.resid_post", hidden[1]), ("ln_f", hidden[2])):
        assert np.array_equal(second.arrays[name], wanted)
    assert np.array_equal(second.arrays["h.1.attn.pattern"], attention[1])


GOOD: dict[str, Array] = {"tokens": np.ones(2, int), "logits": np.zeros((2, 3))}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits": np.zeros((1, 2))}, "tokens is missing"),
        ({"tokens": np.zeros(1, int)}, "logits is missing"),
        ({"tokens": np.zeros(1), "logits": np.zeros((1, 2))}, "a row of integers"),
        (
            {"0.tokens": np.zeros(1, int), "0.logits": np.zeros((1, 2)), "greedy": np.ones(1, int)},
            "does not begin with the first token of case 0",
        ),
        ({"0.tokens": np.zeros(1, int)}, "0.logits is missing"),
        ({}, "no arrays"),
        (GOOD | {"logits": np.array([["a"], ["b"]])}, "logits is <U1; it must hold real numbers"),
        (GOOD | {"logits": np.zeros((2, 3), complex)}, "real numbers"),
        (GOOD | {"logits": np.zeros((3, 5))}, r"logits is \[3, 5\]; for 2 tokens \(T\) it must be \[T, width\]"),
        (GOOD | {"logits": np.zeros(2)}, "logits is"),
        (GOOD | {"attention": np.float32(1)}, r"attention is \[\]"),
        (GOOD | {"attention": np.zeros((1, 2, 2))}, "attention is"),
        (GOOD | {"hidden_states": np.zeros((2, 5))}, "hidden_states is"),
        (GOOD | {"hidden_states": np.zeros((0, 2, 5))}, r"hidden_states is \[0, 2, 5\]"),
        (GOOD | {"greedy": np.int64(3)}, "greedy is"),
        (GOOD | {"greedy": np.array([1.0, 2.0])}, "greedy is"),
        ({f"{i}.{k}": v for i in (0, 1) for k, v in GOOD.items()} | {"greedy": np.ones((1, 2), int)}, "greedy is"),
        (GOOD | {"h.0.attn.pattern": np.zeros((2, 2))}, r"it must be \[head, T, T\]"),
        (GOOD | {"h.0.attn.q": np.zeros((1, 3, 4))}, r"it must be \[head, T, d_head\]"),
        (GOOD | {"h.0.mlp.act": np.float32(0)}, r"it must be \[T, width\]"),
    ],
)
def test_a_reference_that_lacks_something_is_refused(arrays: dict[str, Array], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "r.npz", **arrays)
    with pytest.raises(GlgptError, match=message):
        load_reference(tmp_path / "r.npz")


def test_a_reference_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.npz").write_bytes(b"garbage")
    np.save(tmp_path / "a.npy", np.zeros(3))
    for name, why in (
        ("r.npz", r"r\.npz: not a readable \.npz file"), ("missing.npz", r"missing\.npz does not exist"),
        (".", "is a folder"), ("a.npy", r"a\.npy: a single array"),
    ):  # fmt: skip
        with pytest.raises(GlgptError, match=why + ".*; write a reference with glgpt logits TEXT --out FILE.npz, or"):
            load_reference(tmp_path / name)


def test_a_reference_of_another_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "r.npz", tokens=np.array([1, 2]), logits=np.zeros((2, 7)))
    assert main(["compare", "--model", str(WIDE), "--reference", str(tmp_path / "r.npz"), "--device", "software"]) == 2
    error = capsys.readouterr().err
    assert "r.npz: logits: the reference is [2, 7]" in error and "give that model with --model" in error


def broken(kind: str, folder: Path) -> Path:
    """Writes a file that is not a valid reference and returns its path. `kind` names what is wrong with the file."""
    path = folder / f"{kind}.npz"
    shutil.copy(WIDE / "reference.npz", path)
    data = bytearray(path.read_bytes())
    if kind == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "junk":
        path.write_bytes(b"PK\x03\x04junk")
    elif kind == "crc":
        np.savez(path, **GOOD)
        data = bytearray(path.read_bytes())
        data[data.index(b"NUMPY") + 140] ^= 1
        path.write_bytes(data)
    elif kind == "deflate":
        np.savez_compressed(path, **{**GOOD, "logits": np.random.default_rng(0).random((2, 999))})
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
        path.write_bytes(data)
    elif kind == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros((2, 3)))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tokens", b"text")
    return path


@pytest.mark.parametrize("kind", ["truncated", "junk", "crc", "deflate", "npy", "text"])
def test_a_broken_reference_is_one_clear_line(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = broken(kind, tmp_path)
    assert main(["compare", "--model", str(WIDE), "--reference", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"glgpt: error: {file}: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ids", "1,2", "--ids", "130"], "id 130 at position 0 is outside"),
        (["--ids", ""], "prompt is empty"),
        (["--ids", ",".join(["1"] * 41)], "context of wide holds 40"),
    ],
)
def test_prompts_that_cannot_be_run_are_refused_before_transformers(
    args: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["compare", "--model", str(WIDE), "--reference", "transformers", *args]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


@pytest.mark.parametrize(("ends", "wanted"), [([7, 0], (2, 2)), ([7, 0, 0], (2, 2)), ([0], (0, 1)), ([7, 8], (1, 2))])
def test_a_greedy_reference_may_end_in_the_end_of_text(ends: list[int], wanted: tuple[int, int]) -> None:
    with LanguageModel.from_pretrained(WIDE) as model:
        prompts = ([1, i] for i in range(130))
        both = ((ids, list(model.generate_ids(ids, 2, temperature=0.0))) for ids in prompts)
        ids, first = next((ids, first) for ids, first in both if first[0] != first[1])
        numbers = {7: first[0], 0: first[1], 8: (first[1] + 1) % 130}
        model.eos_ids = (first[1],)
        case = Case("0", ids, {"logits": model.logits(ids)}, [*ids, *(numbers[i] for i in ends)])
        assert compare(model, case, Tolerance.of("f32", 2)).greedy == wanted


def test_json_has_null_where_a_figure_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = {name: wide_arrays()[name] for name in ("tokens", "logits")}
    arrays["logits"][3, 4] = np.nan
    np.savez(tmp_path / "nan.npz", **arrays)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    code, out = run(capsys, WIDE, "--reference", tmp_path / "nan.npz", "--json")
    figures = json.loads(out, parse_constant=refuse)
    assert code == 1 and figures["cases"][0]["worst"]["reference"] is None
    assert figures["cases"][0]["max_abs"][3] is None and figures["cases"][0]["max_abs"][2] < 1e-4


def test_a_reference_of_another_model_is_refused() -> None:
    logits = np.zeros((2, 130), np.float32)
    with LanguageModel.from_pretrained(WIDE) as model:
        with pytest.raises(GlgptError, match=r"reference is \[2, 7\], the model's is \[2, 130\]"):
            compare(model, Case("0", [1, 2], {"logits": logits[:, :7]}), Tolerance.of("f32", 2))
        with pytest.raises(GlgptError, match=r"h\.2\.ln_1 is not an activation"):
            compare(model, Case("0", [1, 2], {"logits": logits, "h.2.ln_1": logits}), Tolerance.of("f32", 2))
        for token in (-4, 130):  # regression: -4 counted from the end of the vocabulary
            with pytest.raises(GlgptError, match=f"`greedy` holds {token}, which is not a token of"):
                compare(model, Case("0", [1, 2], {"logits": logits}, [1, token]), Tolerance.of("f32", 2))


def test_activations_need_a_reference_that_has_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "r.npz", tokens=wide_arrays()["tokens"], logits=wide_arrays()["logits"])
    assert run(capsys, WIDE, "--reference", tmp_path / "r.npz", "--activations")[0] == 2


def test_only_a_live_reference_takes_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, WIDE, "--reference", WIDE / "reference.npz", "--prompt", "To be")[0] == 2


def test_without_transformers_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["compare", "--model", str(WIDE), "--reference", "transformers", "--ids", "1,2"]) == 2
    assert "pip install 'glgpt[reference]'" in capsys.readouterr().err
