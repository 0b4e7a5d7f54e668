"""Tests models in q8 and q4: compares them with the same rounded weights in f32, and bounds the cost of rounding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.reference import random_weights, save_checkpoint, within
from helpers.soak import mostly_soak
from numpy.typing import NDArray
from safetensors.numpy import save_file
from test_model import TEXT, load

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.inference.programs import weight_layouts
from glgpt.inspection.compare import compare
from glgpt.inspection.reference import Case
from glgpt.models import network
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.program.formats import FORMATS
from glgpt.program.tolerance import Tolerance

Array = NDArray[Any]
QUANTISED = [name for name, fmt in FORMATS.items() if fmt.quantised]


@contextmanager
def both(folder: Path, dtype: str, scratch: Path, **options: Any) -> Iterator[tuple[LanguageModel, LanguageModel]]:
    """Yields a model in a format, and an f32 model with the weights that the textures of the first model hold."""
    with load(folder, dtype, **options) as model, Checkpoint.open(folder) as checkpoint:
        held = {}
        for name, layout in weight_layouts(model.player.program, model.config).items():
            parameter = model.config.parameters[name]
            held[model.config.stored_name(name)] = parameter.restore(
                layout.unpack(layout.pack(parameter.arrange(checkpoint.read(name))))
            )
        save_file(held, scratch / "model.safetensors")
        (scratch / "config.json").write_text(json.dumps(model.config.to_dict()))
        with load(scratch) as plain:
            yield model, plain


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a GPT-2 with random weights. Each matrix has several groups of rows."""
    config = GPT2Config(vocab_size=400, n_positions=160, n_embd=192, n_layer=2, n_head=3)
    return save_checkpoint(tmp_path_factory.mktemp("wide"), config, random_weights(config, spread=0.02))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", mostly_soak(QUANTISED, ["q4"]))  # q4 also tests q8, in some of its weights
def test_logits_are_those_of_the_same_weights_in_f32(wide: Path, tmp_path: Path, dtype: str) -> None:
    """Fails if a kernel uses the wrong scale, or rounds the weights again."""
    ids = np.random.default_rng(0).integers(0, 400, 140).tolist()
    with both(wide, dtype, tmp_path) as (model, plain):
        within(model.logits(ids), plain.logits(ids), 2e-3)
        found = list(model.generate_ids(ids[:5], 12, temperature=0))
        assert found == list(plain.generate_ids(ids[:5], 12, temperature=0))
        run = model.generate_batch([ids[:5], ids[:5], ids[7:20]], 12, temperature=0)[0]
        run.read()
        assert run.ids == found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", mostly_soak(QUANTISED, ["q4"]))
def test_a_long_prompt_on_a_gpu_has_the_same_logits(
    wide: Path, tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a weight that is decoded to f16 before a product gets a layout that the product does not expect."""
    monkeypatch.setattr(network, "MANY_ROWS", 64)
    ids = np.random.default_rng(1).integers(0, 400, 140).tolist()
    with both(wide, dtype, tmp_path, kernel="4x8") as (model, plain):
        assert any(p.label.endswith(".halves") for p in model.player.program.entries["prefill_64"].passes)
        within(model.logits(ids), plain.logits(ids), 4e-3)  # weights are rounded a second time


@pytest.mark.slow
@pytest.mark.parametrize("dtype", mostly_soak(QUANTISED, ["q4"]))
def test_a_llama_runs_in_it(goldens: Path, tmp_path: Path, dtype: str) -> None:
    """Fails if a Llama's products or its untied head are read in a wrong format."""
    ids = np.load(goldens / "llama-grouped" / "reference.npz")["tokens"].tolist()[:12]
    with both(goldens / "llama-grouped", dtype, tmp_path) as (model, plain):
        wanted = plain.logits(ids)
        near = Tolerance.of(dtype, model.config.n_layer, same_weights=True)  # inputs of products are float16
        assert near.measure(model.logits(ids), wanted).excess <= 0.6
        assert next(model.generate_ids(ids, 1, temperature=0)) == wanted[-1].argmax()


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "near"), mostly_soak([("q8", 0.002), ("q4", 0.03)], [("q4", 0.03)]))
def test_the_embedded_model_predicts_nearly_as_well(dtype: str, near: float) -> None:
    """Fails if weights are rounded more coarsely than their bits allow."""
    nats, close = [], []
    for name in ("f32", dtype):
        with load(None, name) as model:
            ids = model.encode(TEXT)[:256]
            nats.append(float(np.mean(next(model.losses([ids])))))
            if name == "f32":
                case = Case("0", ids, {"logits": model.logits(ids)}, None)
            else:
                close.append(compare(model, case, Tolerance.of(name, model.config.n_layer)))
    assert abs(nats[1] - nats[0]) < near
    assert close[0].within and 0 < np.mean(close[0].kl) < near


def test_embedding_head_and_down_projection_of_q4_are_q8() -> None:
    with load(None, "q4") as model:
        views = model.player.program.views
        assert (views["wte.weight"].dtype, views["wpe.weight"].dtype) == ("q8", "q8")
        assert views["h.0.attn.c_attn.weight"].dtype == "q4" and views["h.0.attn.c_attn.bias"].dtype == "f32"
        assert views["h.5.mlp.c_fc.weight"].dtype == "q4" and views["h.5.mlp.c_proj.weight"].dtype == "q8"


def test_value_and_down_projections_of_a_llama_in_q4_are_q8(goldens: Path) -> None:
    """Fails if the weights that lose most with four bits are stored with four bits."""
    with load(goldens / "llama-grouped", "q4") as model:
        views = model.player.program.views
        found = {name for name in model.config.parameters if "layers.0" in name and views[name].dtype == "q8"}
        assert found == {f"layers.0.{name}_proj.weight" for name in ("self_attn.v", "mlp.down")}


@pytest.mark.parametrize("dtype", QUANTISED)
def test_a_weight_that_is_not_finite_is_refused_by_name(tmp_path: Path, dtype: str) -> None:
    """Fails if an infinity becomes the scale of a group, which makes the group's other weights zero."""
    config = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    weights = random_weights(config)
    weights["h.0.mlp.c_fc.weight"].flat[3] = np.inf
    with pytest.raises(GlgptError, match=r"(?s)h\.0\.mlp\.c_fc\.weight.*finite"):
        load(save_checkpoint(tmp_path, config, weights), dtype)
