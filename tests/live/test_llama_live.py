"""Compares Llamas with transformers and torch: random shapes, gradients, and tokenizers of Llama checkpoints."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.reference import random_weights, within
from helpers.reference_llama import llama
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from glgpt.checkpoint.opening import Checkpoint
from glgpt.gguf.splits import _LLAMA3, DIGITS, LLAMA3
from glgpt.inference.model import LanguageModel
from glgpt.inspection.reference import run_transformers
from glgpt.models.families.llama import LlamaConfig
from glgpt.text.tokenizer import load_tokenizer
from glgpt.training.trainer import Trainer

ATOL, RTOL = 2e-4, 1e-5
DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
PLAY = (Path(__file__).parents[1] / "data/shakespeare-validation.txt").read_text()[:60_000]


@st.composite
def configs(draw: st.DrawFn) -> transformers.LlamaConfig:
    kv, group, d = draw(st.integers(1, 2)), draw(st.integers(1, 3)), 2 * draw(st.integers(1, 5))
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": draw(st.sampled_from([100.0, 1e4, 5e5]))}
    if draw(st.booleans()):
        rope |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope |= {"original_max_position_embeddings": 32}
    return transformers.LlamaConfig(
        vocab_size=draw(st.integers(2, 90)),
        max_position_embeddings=draw(st.integers(1, 90)),
        hidden_size=kv * group * draw(st.integers(1, 6)),
        num_attention_heads=kv * group,
        num_key_value_heads=kv,
        head_dim=d,
        intermediate_size=draw(st.integers(1, 50)),
        num_hidden_layers=draw(st.integers(1, 2)),
        rms_norm_eps=draw(st.sampled_from([1e-6, 1e-3])),
        rope_parameters=rope,
        tie_word_embeddings=draw(st.booleans()),
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )


@settings(max_examples=6)
@given(configs(), st.data())
def test_drawn_shapes_agree(config: transformers.LlamaConfig, data: st.DataObject) -> None:
    """Fails if results differ from transformers for a configuration that the goldens do not cover."""
    torch.manual_seed(data.draw(st.integers(0, 100)))
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    length = data.draw(st.integers(1, config.max_position_embeddings))
    ids = data.draw(st.lists(st.integers(0, config.vocab_size - 1), min_size=length, max_size=length))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        (case,) = run_transformers(folder, [ids])
        with Checkpoint.open(folder) as opened:
            ours = llama(opened.config, {name: opened.read(name) for name in opened.names}, ids)
        within(ours, case.arrays["logits"], 3e-4, 1e-4, "the reference")  # transformers computes angles in float32
        with LanguageModel.from_pretrained(folder, device=DEVICE) as loaded:
            found = loaded.run_with_cache(ids)[1]
            assert list(found) == list(loaded.config.activations)
            for name, value in found.items():
                within(value, case.arrays[name], ATOL, RTOL, name)


def test_gradients_and_steps_are_torchs(tmp_path: Path) -> None:
    """Fails if a Llama's gradient, or a parameter after a step of AdamW, differs from torch's."""
    config = LlamaConfig(23, 16, 24, 2, 4, 2, 30, None, 1e-4, 100.0, None, True)
    weights = random_weights(config, spread=0.2)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    from safetensors.numpy import save_file

    save_file({config.stored_name(name): value for name, value in weights.items()}, folder / "model.safetensors")
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").double().train()
    ids = np.random.default_rng(0).integers(0, 23, (3, 9))
    x, y = ids[:, :-1], ids[:, 1:]
    loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)).logits.flatten(0, 1), torch.tensor(y).flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    with Trainer(folder, batch=3, context=8, device=DEVICE, weight_decay=0.1, clip=None) as trainer:
        assert trainer.step(x, y, 1e-3) == pytest.approx(float(loss), abs=1e-4)
        gradients = trainer.gradients()
        for name, parameter in theirs.named_parameters():
            ours = gradients[name.removeprefix("model.")]
            near = 1e-5 + 1e-3 * float(parameter.grad.abs().max())
            within(ours, parameter.grad.numpy(), near, 1e-4, name)
        groups = [
            {"params": [p for p in theirs.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in theirs.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ]
        torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95)).step()
        stepped = trainer.parameters()
        for name, parameter in theirs.named_parameters():
            within(stepped[name.removeprefix("model.")], parameter.detach().numpy(), 1e-4, 0, name)
        trainer.save(tmp_path / "saved")
        with Trainer.load(tmp_path / "saved", device=DEVICE) as again:
            assert all(np.array_equal(again.parameters()[name], value) for name, value in stepped.items())
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(loaded.model.norm.weight, torch.tensor(stepped["norm.weight"]))


def trained(kind: str) -> Tokenizer:
    """Returns a small tokenizer like that of SmolLM2 (`digits`), Llama 3 (`llama3`) or TinyLlama (`metaspace`)."""
    engine = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    special = ["<|begin|>", "<|end|>"]
    if kind == "digits":
        steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    elif kind == "llama3":
        steps = [pre_tokenizers.Split(Regex(_LLAMA3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    else:
        steps = [pre_tokenizers.Metaspace()]
    engine.pre_tokenizer = pre_tokenizers.Sequence(steps)
    engine.decoder = decoders.Metaspace() if kind == "metaspace" else decoders.ByteLevel()
    alphabet = [] if kind == "metaspace" else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    engine.train_from_iterator([PLAY + " 1234 56 7890 2024's"], trainer)
    engine.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    return engine


TEXTS = [
    "To be, or not to be",
    "in 1603  it was 42's\n\n\nYES'LL DON'T ſ",
    " \t\r\n  a\u0085b 12345 naïve café ☃",
    "<|end|>x",
]


@pytest.mark.parametrize(("kind", "split"), [("digits", DIGITS), ("llama3", LLAMA3), ("metaspace", None)])
def test_tokenizers_of_llamas_give_their_librarys_ids(tmp_path: Path, kind: str, split: Any) -> None:
    """Fails if a text is split or merged differently than by `tokenizers`, or the prompt's first token differs."""
    engine = trained(kind)
    engine.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    ours = load_tokenizer(tmp_path, engine.get_vocab_size())
    assert ours is not None and ours.split == split and ours.eos == 1 and ours.prompt_prefix == [0]
    for text in [*TEXTS, *(PLAY[i : i + 300] for i in range(0, 6000, 300))]:
        if kind != "metaspace" or text.isascii():
            assert ours.encode(text) == engine.encode(text, add_special_tokens=False).ids, text
        if kind != "metaspace":
            assert ours.decode(ours.encode(text)) == text
