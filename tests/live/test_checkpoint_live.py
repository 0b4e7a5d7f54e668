"""Tests that glgpt reads equal values from checkpoints that transformers and torch write, of any shape and dtype."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.torch_file import torch_tensors
from glgpt.errors import GlgptError

GOLDENS = Path(__file__).parents[1] / "goldens"


@st.composite
def models(draw):
    heads = draw(st.integers(1, 4))
    config = GPT2Config(
        vocab_size=draw(st.integers(1, 50)),
        n_positions=draw(st.integers(1, 20)),
        n_embd=heads * draw(st.integers(1, 5)),
        n_layer=draw(st.integers(1, 3)),
        n_head=heads,
        n_inner=draw(st.none() | st.integers(1, 20)),
        tie_word_embeddings=draw(st.booleans()),
        activation_function=draw(st.sampled_from(["gelu_new", "gelu", "relu"])),
    )
    torch.manual_seed(draw(st.integers(0, 1000)))
    model = GPT2LMHeadModel(config).to(draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def expect_values(folder, model):
    with Checkpoint.open(folder) as checkpoint:
        parameters = {name.removeprefix("transformer."): value for name, value in model.named_parameters()}
        assert checkpoint.names == set(parameters)
        for name, value in parameters.items():
            values = checkpoint.read(name)
            assert values.dtype == (np.float16 if value.dtype == torch.float16 else np.float32)
            assert np.array_equal(values, value.detach().float().numpy()), name


@given(model=models(), layout=st.sampled_from(["whole", "sharded", "zip", "legacy"]))
@settings(max_examples=120, deadline=None)
def test_whatever_transformers_saves(model, layout):
    with tempfile.TemporaryDirectory() as folder:
        if layout in ("whole", "sharded"):
            model.save_pretrained(folder, max_shard_size="5GB" if layout == "whole" else "2KB")
        else:
            model.config.save_pretrained(folder)
            # If the head is tied to the embedding, the file has two names for one storage, as torch saves it.
            path = Path(folder) / "pytorch_model.bin"
            torch.save(model.state_dict(), path, _use_new_zipfile_serialization=layout == "zip")
        expect_values(folder, model)


@pytest.mark.parametrize("zip_format", [True, False])
def test_the_oldest_layout(tmp_path, zip_format):
    # Like gpt2's first upload: names without a prefix, no head, and each layer's causal mask as a buffer. In addition,
    # one storage holds two tensors.
    model = GPT2Model(GPT2Config(vocab_size=11, n_positions=6, n_embd=8, n_layer=2, n_head=2))
    state = dict(model.state_dict())
    both = torch.cat([state["ln_f.weight"], state["ln_f.bias"] + 1])
    with torch.no_grad():
        model.ln_f.bias += 1
    state |= {"ln_f.weight": both[:8], "ln_f.bias": both[8:]}
    for i in range(2):
        state[f"h.{i}.attn.bias"] = torch.ones(6, 6, dtype=torch.uint8).tril()[None, None]
        state[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    state["wte.weight"] = torch.nn.Parameter(state["wte.weight"])
    model.config.save_pretrained(tmp_path)
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zip_format)
    expect_values(tmp_path, model)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_views_of_any_strides(data):
    base = torch.arange(720, dtype=data.draw(st.sampled_from([torch.float32, torch.float16]))).reshape(6, 10, 12)
    view = base.permute(data.draw(st.permutations(range(3))))
    start, step = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3))
    view = view[start::step, :, data.draw(st.integers(0, 4)) :]
    view = view[data.draw(st.sampled_from([0, -1]))] if data.draw(st.booleans()) else view
    view = view[..., :1].expand(*view.shape[:-1], 5) if data.draw(st.booleans()) else view
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "some.bin"
        torch.save({"view": view}, path, _use_new_zipfile_serialization=data.draw(st.booleans()))
        stored = torch_tensors(path)["view"]
        assert np.array_equal(stored.map(), view.numpy())


@pytest.mark.parametrize(
    "saved", [torch.nn.Linear(2, 2), [torch.ones(2)], {"step": 3}, {"a": {"b": torch.ones(2)}}, torch.ones(2)]
)
@pytest.mark.parametrize("zip_format", [True, False])
def test_other_things_that_torch_saves_are_refused(tmp_path, saved, zip_format):
    torch.save(saved, tmp_path / "some.bin", _use_new_zipfile_serialization=zip_format)
    with pytest.raises(GlgptError, match=r"some\.bin (does not hold|is refused)"):
        torch_tensors(tmp_path / "some.bin")


@pytest.mark.soak
def test_goldens_are_current():
    subprocess.run([sys.executable, GOLDENS / "make.py", "--check"], check=True)
