"""Compares the decoding of several texts at once with a padded batch of transformers in float64."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from helpers.reference import within

from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.model import LanguageModel
from glgpt.inference.sampling import Sampler

ATOL, RTOL = 2e-4, 1e-5
DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
SHAPE = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 0}
MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**SHAPE, n_positions=40, n_embd=24, n_layer=2, n_head=3)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **SHAPE,
            max_position_embeddings=40,
            hidden_size=24,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=36,
            num_hidden_layers=2,
        )
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("family", MODELS)
def test_a_batch_gives_the_logits_of_a_padded_batch(tmp_path: Path, family: str) -> None:
    """Fails if a text's row in a step attends to another text's keys, or has another text's position."""
    torch.manual_seed(3)
    theirs = MODELS[family]()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    theirs = theirs.double().eval()
    rng = np.random.default_rng(5)
    texts = [rng.integers(1, 60, n).tolist() for n in (3, 17, 8, 1, 30, 9)]
    fed = rng.integers(1, 60, (6, 8))  # the token of each text in each step
    longest = max(map(len, texts)) + fed.shape[1]
    ids, mask = np.zeros((6, longest), np.int64), np.zeros((6, longest), np.int64)
    for i, text in enumerate(texts):
        whole = [*text, *fed[i].tolist()]
        ids[i, -len(whole) :], mask[i, -len(whole) :] = whole, 1
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    given = {"attention_mask": torch.tensor(mask), "position_ids": torch.tensor(positions), "use_cache": False}
    wanted = theirs(torch.tensor(ids), **given).logits.numpy()
    with LanguageModel.from_pretrained(tmp_path, device=DEVICE) as model:
        decoder = model._batch
        assert decoder
        decoder.reserve(300)
        ours = [decoder.begin(text, [Sampler(SamplingOptions(temperature=0))], [0])[0][0] for text in texts]
        for step in range(fed.shape[1]):
            decoder.step(ours, fed[:, step].tolist())
            within(decoder.logits(), wanted[:, step - fed.shape[1]], ATOL, RTOL, f"step {step}")
