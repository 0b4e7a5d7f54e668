"""Compares families of models with transformers in float64, on random checkpoints of three shapes per family."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from helpers.reference import within
from safetensors.numpy import save_file

from glgpt import models
from glgpt.errors import GlgptError
from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.inspection.reference import Case, run_transformers
from glgpt.models.spec import ModelConfig
from glgpt.program.tolerance import Tolerance, kl_divergence, tokens_first
from glgpt.training.trainer import Trainer

ATOL, RTOL = 2e-4, 1e-5
DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")

SIZES = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
WHOLE = {**SIZES, "num_key_value_heads": 4}
COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "max_position_embeddings": 48,
    "bos_token_id": 0,
    "eos_token_id": 60,
    "pad_token_id": None,
    "initializer_range": 0.2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 12}
DEFAULT = {"rope_type": "default", "rope_theta": 100.0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 100.0, "long_factor": [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]}
LONGROPE |= {"short_factor": [1.0, 1.1, 1.5, 2.0, 2.5, 3.0]}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0}
LOCAL = ["sliding_attention", "full_attention", "sliding_attention"]
NEOX = {**SIZES, "hidden_size": 32}
NEO = {"hidden_size": 24, "num_layers": 3, "num_heads": 4}
# Three configurations of each family, with fields of transformers' configuration.
FAMILIES: dict[str, list[dict[str, Any]]] = {
    "llama": [
        {**GROUPED, "attention_bias": True, "mlp_bias": True},
        {**WHOLE, "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
        {**GROUPED, "head_dim": 10, "rope_parameters": YARN, "tie_word_embeddings": True},
    ],
    "mistral": [
        {**GROUPED, "sliding_window": 12},
        {**WHOLE, "sliding_window": None, "tie_word_embeddings": True, "rope_parameters": YARN},
        {**GROUPED, "head_dim": 10, "sliding_window": 5},
    ],
    "phi3": [
        {**GROUPED, "sliding_window": 6, "initializer_range": 0.12},
        {**WHOLE, "hidden_size": 32, "rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.5}},
        {**GROUPED, "num_attention_heads": 2, "num_key_value_heads": 1, "rope_parameters": LONGROPE}
        | {"max_position_embeddings": 96, "original_max_position_embeddings": 48},
    ],
    "qwen2": [
        GROUPED,
        {**WHOLE, "tie_word_embeddings": True, "rope_parameters": YARN},
        {**GROUPED, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ],
    "qwen3": [
        {**GROUPED, "head_dim": 10},
        {**WHOLE, "head_dim": 6, "attention_bias": True, "tie_word_embeddings": True},
        {**GROUPED, "head_dim": 8, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
    ],
    "smollm3": [
        {**GROUPED, "no_rope_layers": [1, 0, 1]},
        {**WHOLE, "no_rope_layer_interval": 2, "tie_word_embeddings": False, "rope_parameters": YARN},
        {**GROUPED, "attention_bias": True, "mlp_bias": True, "use_sliding_window": True, "sliding_window": 6}
        | {"no_rope_layer_interval": 2},
    ],
    "gemma3_text": [
        {**GROUPED, "head_dim": 8, "sliding_window": 6, "layer_types": LOCAL, "query_pre_attn_scalar": 20},
        {**WHOLE, "head_dim": 6, "sliding_window": 5, "layer_types": LOCAL, "attention_bias": True}
        | {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": DEFAULT}},
        {**GROUPED, "head_dim": 10, "tie_word_embeddings": False, "sliding_window": 40},
    ],
    "gpt_neox": [
        NEOX,
        {**NEOX, "use_parallel_residual": False, "hidden_act": "gelu_new", "attention_bias": False},
        {**NEOX, "num_attention_heads": 2, "rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.5}},
    ],
    "olmo2": [
        GROUPED,
        {**WHOLE, "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 18, "attention_bias": True},
        {**GROUPED, "tie_word_embeddings": True},
    ],
    "gpt_neo": [
        {**NEO, "window_size": 7, "attention_types": [[["global", "local", "global"], 1]]},
        {**NEO, "attention_types": [[["global"], 3]], "intermediate_size": 30},
        {**NEO, "num_heads": 3, "window_size": 3, "attention_types": [[["local"], 3]], "activation_function": "relu"},
    ],
    "gemma2": [
        {**GROUPED, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0},
        {**WHOLE, "head_dim": 6, "final_logit_softcapping": 3.0, "attention_bias": True},
        {**GROUPED, "head_dim": 10, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ],
}
# By format: (rounding step, number of roundings whose errors add up). The unit of the step is the standard deviation of
# the normally distributed weights. A group of weights spans 4.2 of these units in q4 and 4.8 in q8. A model of three
# blocks has 14 roundings in series: of 12 products, the embedding and the head. f16 has twice as many, since it also
# rounds the inputs of products. q4 counts half as many, since half of its weights have 8 bits.
ROUNDING = {"f16": (2**-10, 28), "q8": (2 * 2.4 / 254, 14), "q4": (4.2 / 15, 7)}
CASES = [pytest.param(name, i, id=f"{name}-{i}") for name, shapes in FAMILIES.items() for i in range(len(shapes))]
# Gradients of a family's second and third shape are soak tests: with them, the test takes three times as long. The
# activations of all shapes are compared in each run.
FIRST = [pytest.param(*case.values, id=case.id, marks=[pytest.mark.soak] * (case.values[1] > 0)) for case in CASES]
# gpt_neox has biases, and attention parallel to the MLP; llama has neither. gemma2 has norms after attention and MLP,
# phi3 packed weights. The other families repeat these variants.
PACKINGS = ("gpt_neox", "llama", "gemma2", "phi3")
NARROW = [pytest.param(name, marks=[pytest.mark.soak] * (name not in PACKINGS)) for name in FAMILIES]
IDS = np.random.default_rng(1).integers(0, COMMON["vocab_size"], 31).tolist()


class Drawn(NamedTuple):
    """Holds a random model's folder, the model in transformers, and its activations for IDS."""

    folder: Path
    theirs: Any
    case: Case


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Drawn]:
    """Returns the function `drawn(family, shape)`, which makes each random model only once."""

    @cache
    def draw(name: str, shape: int) -> Drawn:
        folder = tmp_path_factory.mktemp(name)
        theirs = checkpoint(folder, name, FAMILIES[name][shape])
        return Drawn(folder, theirs, *run_transformers(folder, [IDS]))

    return draw


def checkpoint(folder: Path, name: str, shape: dict[str, Any]) -> Any:
    """Saves a random model of a family in `folder` and returns the model."""
    config = transformers.AutoConfig.for_model(name, **(COMMON | shape))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or parameter_name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model.double().eval()


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_activations_logits_and_text_are_transformers(
    drawn: Callable[[str, int], Drawn], name: str, shape: int
) -> None:
    folder, theirs, case = drawn(name, shape)
    with LanguageModel.from_pretrained(folder, device=DEVICE) as model:
        found = model.run_with_cache(IDS)[1]
        assert list(found) == list(model.config.activations) and set(found) == set(case.arrays)
        for activation, value in found.items():
            within(value, case.arrays[activation], ATOL, RTOL, activation)
        within(model.logits(IDS), case.arrays["logits"], ATOL, RTOL, "logits")
        with torch.no_grad():
            greedy = theirs.generate(torch.tensor([IDS[:20]]), max_new_tokens=16, do_sample=False, eos_token_id=None)
        text = list(model.generate_ids(IDS[:20], 16, temperature=0, eos=False))
        assert text == greedy[0, 20:].tolist()


@pytest.mark.parametrize(("name", "shape"), FIRST)
def test_gradients_are_torchs_and_a_saved_model_loads(
    tmp_path: Path, drawn: Callable[[str, int], Drawn], name: str, shape: int
) -> None:
    """Fails if a parameter's gradient differs, or transformers reads a saved model differently."""
    folder, theirs, _ = drawn(name, shape)
    ids = np.random.default_rng(0).integers(0, COMMON["vocab_size"], (3, 13))
    x, y = ids[:, :-1], ids[:, 1:]
    loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)).logits.flatten(0, 1), torch.tensor(y).flatten())
    loss.backward()
    with Trainer(folder, batch=3, context=12, device=DEVICE, clip=None) as trainer:
        assert trainer.step(x, y, 1e-3) == pytest.approx(loss.item(), abs=2e-4)
        gradients, config = trainer.gradients(), trainer.config
        for parameter_name, parameter in theirs.named_parameters():
            own = config.head if parameter_name == "lm_head.weight" else parameter_name.removeprefix(config.prefix)
            ours = config.file_tensors[own].joined(gradients.__getitem__)
            near = 1e-5 + 1e-3 * float(parameter.grad.abs().max())
            within(ours, parameter.grad.numpy(), near, 1e-4, parameter_name)
        trainer.save(tmp_path / "saved")
    theirs.zero_grad()
    with LanguageModel.from_pretrained(tmp_path / "saved", device=DEVICE) as model:
        (case,) = run_transformers(tmp_path / "saved", [x[0].tolist()])
        within(model.logits(x[0].tolist()), case.arrays["logits"], ATOL, RTOL, "logits of the saved model")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_split_at_any_block_has_the_same_logits(drawn: Callable[[str, int], Drawn], name: str) -> None:
    """Fails if a part of a split model needs values that only another part has."""
    folder, ids = drawn(name, 0).folder, list(range(1, 9))
    with LanguageModel.from_pretrained(folder, device=DEVICE) as whole:
        logits, text = whole.logits(ids), list(whole.generate_ids(ids, 4, temperature=0, eos=False))
    for at in (1, 2):
        plan = f"0-{at - 1}@here,{at}-2@here"
        with load(folder, device=DEVICE, plan=plan) as split:
            assert np.array_equal(split.run_with_cache(ids)[0], logits)
            assert list(split.generate_ids(ids, 4, temperature=0, eos=False)) == text


@pytest.mark.parametrize("name", NARROW)
def test_narrow_weights_give_transformers_numbers(
    tmp_path: Path, drawn: Callable[[str, int], Drawn], name: str
) -> None:
    """Fails if a product uses weights other than the rounded ones, or rounds its inputs more coarsely than f16."""
    folder, _, own = drawn(name, 0)
    shutil.copytree(folder, tmp_path / "rounded")
    exact = own.arrays["logits"]
    for dtype, (step, roundings) in ROUNDING.items():
        with LanguageModel.from_pretrained(folder, dtype, device=DEVICE) as model:
            rounded = {
                model.config.stored_name(name): tensor.joined(model.parameter)
                for name, tensor in model.config.file_tensors.items()
            }
            save_file(rounded, tmp_path / "rounded" / "model.safetensors", {"format": "pt"})
            (case,) = run_transformers(tmp_path / "rounded", [IDS])
            logits, found = model.run_with_cache(IDS)
        tolerance = Tolerance.of(dtype, model.config.n_layer, same_weights=True)
        for activation, value in found.items():
            near = tolerance.measure(tokens_first(value), tokens_first(case.arrays[activation]))
            assert near.excess <= 1, (dtype, activation, near)
        # To first order, KL is half of the variance of the logits' errors. One rounding has a variance of step**2 / 12.
        limit = roundings * step**2 / 12 * exact.var(axis=1).mean() / 2
        assert kl_divergence(exact, logits).mean() < limit, dtype


def test_a_llama_with_a_window_is_a_mistral(tmp_path: Path, drawn: Callable[[str, int], Drawn]) -> None:
    """Fails if a Llama's `sliding_window` is ignored, or is applied although config.json switches it off."""
    folder, _, case = drawn("mistral", 0)
    shutil.copytree(folder, tmp_path / "llama")
    fields = json.loads((folder / "config.json").read_text()) | {"model_type": "llama"}
    for more, same in (({}, True), ({"use_sliding_window": False}, False), ({"sliding_window": None}, False)):
        (tmp_path / "llama/config.json").write_text(json.dumps(fields | more))
        with LanguageModel.from_pretrained(tmp_path / "llama", device=DEVICE) as model:
            assert (np.abs(model.logits(IDS) - case.arrays["logits"]).max() < ATOL) == same


LINEAR = {"rope_type": "linear", "factor": 2}


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("llama", "hidden_act", "gelu_fast"),
        ("llama", "rope_scaling", {"rope_type": "longrope"}),
        ("phi3", "rope_scaling", {"type": "su", "short_factor": [1.0, 0.0], "long_factor": [1.0, 2.0]}),
        ("llama", "rope_scaling", {"rope_type": "proportional"}),
        ("llama", "rope_scaling", {"rope_type": "linear", "factor": 0}),
        ("gemma2", "layer_types", ["chunked_attention", "full_attention"]),
        ("gemma2", "query_pre_attn_scalar", "wide"),
        ("gemma3_text", "use_bidirectional_attention", True),
        ("gemma3_text", "rope_parameters", {"full_attention": {}, "sliding_attention": LINEAR}),
        ("smollm3", "no_rope_layers", 3),
        ("qwen3", "num_key_value_heads", 3),
        ("gpt_neo", "attention_types", [[["global", "sparse"], 1]]),
        ("gpt_neox", "hidden_act", "gelu_fast"),
    ],
)
def test_a_field_that_the_spec_lacks_is_refused_by_name(name: str, field: str, value: Any) -> None:
    config: type[ModelConfig] = models.family(name)
    usual = config.sized(61, 48, 32, 2, 4).to_dict()
    usual.pop("rope_parameters", None)
    assert isinstance(models.from_dict(usual), config)
    said = {"rope_scaling": "rope", "num_key_value_heads": "key and value heads"}.get(field, field)
    with pytest.raises(GlgptError, match=said):
        models.from_dict(usual | {field: value})
