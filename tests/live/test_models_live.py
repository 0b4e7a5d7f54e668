"""Compares GPT-2s with eager float64 transformers: random shapes, the embedded model, and the full 124M shape."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.reference import gpt2, within
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from glgpt.checkpoint.finding import embedded_weights
from glgpt.checkpoint.opening import Checkpoint
from glgpt.inference.model import LanguageModel

Array = NDArray[Any]
ATOL, RTOL = 2e-4, 1e-5  # the project's documented tolerance of f32
NEAR_TIE = 1e-3  # rounding may swap the two best logits if they are closer than this


def theirs(folder: Path) -> transformers.GPT2LMHeadModel:
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager")
    return model.double().eval()


@torch.no_grad()
def logits(model: transformers.GPT2LMHeadModel, ids: list[int]) -> Array:
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


@torch.no_grad()
def seen_inside(model: transformers.GPT2LMHeadModel, ids: list[int]) -> dict[str, Array]:
    """Returns the values that transformers exposes: the residual stream, the patterns, and every module's output."""
    config, found = model.config, dict[str, Array]()

    def keep(name: str) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            found[name] = (output[0] if isinstance(output, tuple) else output)[0].numpy()

        return hook

    body, hooks = model.transformer, []
    for i, block in enumerate(body.h):
        modules = {"ln_1": block.ln_1, "attn.out": block.attn, "ln_2": block.ln_2, "mlp.pre": block.mlp.c_fc} | {
            "mlp.act": block.mlp.act,
            "mlp.out": block.mlp.c_proj,
            "resid_post": block,
        }
        hooks += [module.register_forward_hook(keep(f"h.{i}.{name}")) for name, module in modules.items()]
    hooks += [body.drop.register_forward_hook(keep("embed")), body.ln_f.register_forward_hook(keep("ln_f"))]
    run = model(torch.tensor([ids]), output_attentions=True, use_cache=False)
    for hook in hooks:
        hook.remove()
    for i in range(config.n_layer):
        found[f"h.{i}.attn.pattern"] = run.attentions[i][0].numpy()
    return found | {"logits": run.logits[0].numpy()}


def greedy(model: transformers.GPT2LMHeadModel, ids: list[int], tokens: int) -> list[int]:
    """Returns the ids and their greedy continuation, which ends early where the two best logits nearly tie."""
    made = list(ids)
    while len(made) < min(len(ids) + tokens, model.config.n_positions):
        last = logits(model, made)[-1]
        second, best = np.argsort(last)[-2:]
        if last[best] - last[second] < NEAR_TIE:
            break
        made.append(int(best))
    return made


@st.composite
def configs(draw: st.DrawFn) -> transformers.GPT2Config:
    n_head, d_head = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    return transformers.GPT2Config(
        vocab_size=draw(st.integers(2, 90)),
        n_positions=draw(st.integers(1, 90)),
        n_embd=n_head * d_head,
        n_head=n_head,
        n_layer=draw(st.integers(1, 3)),
        n_inner=draw(st.none() | st.integers(1, 50)),
        activation_function=draw(st.sampled_from(["gelu_new", "gelu", "relu"])),
        layer_norm_epsilon=draw(st.sampled_from([1e-5, 1e-3])),
        scale_attn_weights=draw(st.booleans()),
        scale_attn_by_inverse_layer_idx=draw(st.booleans()),
        tie_word_embeddings=draw(st.booleans()),
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )


def compare_inside(
    ours: dict[str, Array], model: transformers.GPT2LMHeadModel, checkpoint: Path, ids: list[int]
) -> None:
    """Compares all activations with the float64 reference, and the reference with the values of `seen_inside`."""
    with Checkpoint.open(checkpoint) as opened:
        wanted = gpt2(opened.config, {name: opened.read(name) for name in opened.names}, ids)
    assert list(ours) == list(wanted) == list(opened.config.activations)
    for name, value in seen_inside(model, ids).items():
        within(wanted[name], value, 1e-9, 1e-9, name)
    for name, value in ours.items():
        within(value, wanted[name], ATOL, RTOL, name)


@settings(max_examples=12)
@given(configs(), st.data())
def test_drawn_shapes_agree(config: transformers.GPT2Config, data: st.DataObject) -> None:
    """Fails if a shape, activation or switch that no golden has gives other numbers than transformers."""
    torch.manual_seed(data.draw(st.integers(0, 100)))
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".ln_" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    length = data.draw(st.integers(1, config.n_positions))
    ids = data.draw(st.lists(st.integers(0, config.vocab_size - 1), min_size=length, max_size=length))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        exact = theirs(Path(folder))
        with LanguageModel.from_pretrained(folder, device="software") as ours:
            compare_inside(ours.run_with_cache(ids)[1], exact, Path(folder), ids)
            within(ours.logits(ids), logits(exact, ids), ATOL, RTOL, "logits")
            start = ids[: 1 + length // 2]
            made = greedy(exact, start, 12)
            assert [*start, *ours.generate_ids(start, len(made) - len(start), temperature=0, eos=False)] == made


@pytest.mark.parametrize("generation, config", [(None, 11), ([3], 11), ([3, 11], 29), (11, None), (None, [20, 19])])
def test_generation_ends_at_the_same_tokens(tmp_path: Path, generation: Any, config: Any) -> None:
    """Fails if the end tokens, a number or a list, are read from another file than the one that transformers uses."""
    torch.manual_seed(0)
    shape = {"vocab_size": 30, "n_positions": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "initializer_range": 0.5}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=0)).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text()) | {"eos_token_id": config}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "generation_config.json").unlink()
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    made = model.generate(torch.tensor([[4, 5]]), max_new_tokens=12, do_sample=False, pad_token_id=0)[0, 2:].tolist()
    with LanguageModel.from_pretrained(tmp_path, device="software") as ours:
        found = list(ours.generate_ids([4, 5], 12, temperature=0))
    assert len(made) < 12 and found == made[:-1]  # transformers also returns the end of text


def test_the_embedded_model_agrees_at_its_full_context() -> None:
    model = theirs(embedded_weights())
    rng = np.random.default_rng(0)
    with LanguageModel.from_pretrained(device="software") as ours:
        prompt = ours.encode("ROMEO:\nBut, soft! what light through yonder window breaks?\n")
        ids = (prompt + rng.integers(0, 1024, 256).tolist())[:256]
        compare_inside(ours.run_with_cache(ids)[1], model, embedded_weights(), ids)
        made = greedy(model, prompt, 64)
        assert len(made) == len(prompt) + 64
        assert [*prompt, *ours.generate_ids(prompt, 64, temperature=0)] == made


@pytest.mark.soak
@pytest.mark.slow
def test_the_full_124m_shape_agrees(tmp_path: Path) -> None:
    """Fails if logits are wrong at GPT-2's real sizes, such as a vocabulary of 50257 and twelve heads of 64."""
    torch.manual_seed(1)
    transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained(tmp_path)
    model = theirs(tmp_path)
    ids = np.random.default_rng(2).integers(0, 50257, 21).tolist()
    wanted = logits(model, ids)
    with LanguageModel.from_pretrained(tmp_path, device="software") as ours:
        within(ours.logits(ids), wanted, ATOL, RTOL, "logits")
        tokens = ours.generate_ids(ids[:20], 2, temperature=0)
        assert next(tokens) == wanted[19].argmax()
