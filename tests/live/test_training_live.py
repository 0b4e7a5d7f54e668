"""Compares training with torch: every op's gradient (vjp) with autograd, and models of random shapes in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from cases import SHAPE, VJPS
from cases.backward import backward
from helpers.op_bench import EPS, STYLES, Bench, textures
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy, gelu, layer_norm, relu
from transformers import GPT2LMHeadModel

from glgpt.gl.device import Device
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.training.trainer import Trainer

Array = NDArray[Any]
Tensors = dict[str, torch.Tensor]


def apart_heads(x: torch.Tensor, s: SimpleNamespace) -> torch.Tensor:
    """Returns `[t * batch + sequence, n_head * d]` as `[batch, n_head, t, d]`."""
    return x.unflatten(1, (s.n_head, -1)).unflatten(0, (-1, s.batch)).permute(1, 2, 0, 3)


def scores(s: SimpleNamespace, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Returns rows of attention scores. Masked scores are zero, as is the given gradient at their places."""
    y = (0.4 * apart_heads(q, s) @ apart_heads(k, s).mT).tril()
    return y.permute(2, 0, 1, 3).flatten(0, 2)


def softmax(s: SimpleNamespace, x: torch.Tensor) -> torch.Tensor:
    rows = s.rows * s.batch * s.n_head
    beyond = torch.arange(s.rows) > torch.arange(rows)[:, None] // (s.batch * s.n_head)
    return x[:rows].masked_fill(beyond, -torch.inf).softmax(-1)


def attend(s: SimpleNamespace, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    cube = x[: s.rows * s.batch * s.n_head].unflatten(0, (s.rows, s.batch, s.n_head)).permute(1, 2, 0, 3)
    z = 0.7 * cube.tril() @ apart_heads(v, s)
    return z.permute(2, 0, 1, 3).flatten(0, 1).flatten(1)


def activation(s: SimpleNamespace, x: torch.Tensor) -> torch.Tensor:
    return {"gelu": gelu, "relu": relu, "gelu_new": lambda x: gelu(x, approximate="tanh")}[s.act](x)


THEIRS: dict[str, Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]] = {
    "matmul": lambda s, x, w, bias=0, residual=0: x @ w[: s.inner] + bias + residual,
    "norm": lambda s, x, gain, bias: layer_norm(x, (s.cols,), gain[0], bias[0], 0.1),
    "act": activation,
    "add": lambda s, a, b: a + b,
    "split_qkv": lambda s, x: x.chunk(3, 1),
    "scores": scores,
    "softmax": softmax,
    "attend": attend,
}


@pytest.mark.parametrize("style", ["4x4", "4x8"])
@pytest.mark.parametrize("case", [*THEIRS, "embed", "cross_entropy"])
def test_vjps_are_autograds(device: Device, case: str, style: str) -> None:
    """Fails if a vjp is wrong, even if the NumPy reference of tests/ops/test_vjp.py has the same fault."""
    atol, k = VJPS[case].near

    @settings(max_examples=4)
    @given(VJPS[case].shape, st.integers(0, 1000))
    def run(shape: SimpleNamespace, seed: int) -> None:
        s, bench = SimpleNamespace(**SHAPE | vars(shape)), Bench(STYLES[style], seed)
        with bench.entry("test"):
            b = backward(bench, case, s)
        played = textures(device, bench)
        leaves = {n: torch.tensor(bench.held[x.name], requires_grad=True) for n, x in b.taped.inputs.items()}
        ids, targets = (
            torch.tensor(bench.held.get(name, np.zeros((1, 1)))[:, 0]).long() for name in ("ids", "targets")
        )
        if case == "embed":
            places = leaves["wpe"][torch.arange(len(ids)) // s.batch]
            outputs: Any = leaves["wte"][: s.cols].T[ids] + places
        elif case == "cross_entropy":
            outputs = 0.3 * cross_entropy(leaves["x"], targets, ignore_index=-1, reduction="sum")
        else:
            outputs = THEIRS[case](s, **leaves)
        if case == "cross_entropy":
            outputs.backward()
        else:
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            dys = [torch.tensor(dy[: len(y)]) for dy, y in zip(b.dys, outputs, strict=True)]
            torch.autograd.backward(outputs, dys)
        for (name, leaf), (matrix, _) in zip(leaves.items(), played, strict=True):
            rows = b.taped.rows.get(name, len(matrix))
            assert leaf.grad is not None
            wanted = (leaf.grad.numpy() + b.so_far.get(name, 0))[:rows]
            off = np.abs(matrix[:rows] - wanted) - (atol + k * EPS * np.abs(wanted))
            assert off.max() <= 0, f"{case}: d.{name} is {off.max() + atol:.2e} off, {atol} allowed"

    run()


# Whole models

BETAS, EPSILON, DECAY, CLIP, LR = (0.9, 0.95), 1e-8, 0.1, 1.0, 1e-2


@st.composite
def configs(draw: st.DrawFn) -> GPT2Config:
    n_head = draw(st.integers(1, 4))
    return GPT2Config(
        vocab_size=draw(st.integers(2, 90)),
        n_positions=draw(st.integers(2, 40)),
        n_embd=n_head * draw(st.integers(1, 9)),
        n_head=n_head,
        n_layer=draw(st.integers(1, 2)),
        n_inner=draw(st.none() | st.integers(1, 50)),
        activation_function=draw(st.sampled_from(["gelu_new", "gelu", "relu"])),
        # The values of a short row may be nearly equal. A norm with a small epsilon would amplify their rounding.
        layer_norm_epsilon=draw(st.sampled_from([1e-2, 1e-1])),
        scale_attn_by_inverse_layer_idx=draw(st.booleans()),
        tie_word_embeddings=draw(st.booleans()),
    )


def theirs(trainer: Trainer, seed: int) -> GPT2LMHeadModel:
    """Gives the trainer's model and a torch model the same weights, with a wide spread. Returns torch's, in float64."""
    c, rng = trainer.config, np.random.default_rng(seed)
    fields = {name: getattr(c, name) for name in c.__dataclass_fields__}
    rates = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    model = GPT2LMHeadModel(
        transformers.GPT2Config(**fields, **rates, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    ).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            values = rng.normal(mean, 0.3, parameter.shape).astype(np.float32)
            parameter.copy_(torch.from_numpy(values))
            trainer.textures.write(name.removeprefix("transformer."), values)
    return model


def key_bias(name: str, size: int) -> slice:
    """Returns the slice of a parameter that is attention's key bias. The slice is empty in other parameters.

    Softmax ignores the key bias: its gradient is zero except for rounding, which AdamW turns into whole steps.
    """
    return slice(size // 3, 2 * size // 3) if name.endswith("c_attn.bias") else slice(0)


def compare_steps(trainer: Trainer, steps: int, seed: int, masked: float, smaller: bool) -> None:
    """Compares the losses of all steps, and the gradients of the first step by the norm of their difference.

    A share `masked` of the targets is left out. If `smaller`, each step has another number of rows and tokens.
    """
    model, r, rng = theirs(trainer, seed), trainer.recipe, np.random.default_rng(seed + 1)
    named = {name.removeprefix("transformer."): p for name, p in model.named_parameters()}
    groups = [{"params": [p for p in named.values() if (p.ndim > 1) == m], "weight_decay": DECAY * m} for m in (1, 0)]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPSILON)
    for step in range(steps):
        most = np.array([r.batch * r.accumulate, r.context])
        size = rng.integers(1, most + 1) if smaller else most
        x, y = rng.integers(0, trainer.config.vocab_size, (2, *size))
        y[rng.random(y.shape) < masked] = -1
        y[0, 0] = max(0, y[0, 0])  # keeps one target, since torch cannot average none
        loss = trainer.step(x, y)
        logits = model(torch.from_numpy(x), use_cache=False).logits
        wanted = cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten(), ignore_index=-1)
        optimizer.zero_grad()
        wanted.backward()
        assert abs(loss - wanted.item()) <= 1e-4, f"step {step}"
        whole = float(torch.nn.utils.get_total_norm([p.grad for p in named.values() if p.grad is not None]))
        for name, found in trainer.gradients().items() if step == 0 else ():
            grad = named[name].grad
            assert grad is not None
            # A gradient whose terms nearly cancel has rounding errors in proportion to the norm of all gradients.
            off, size = np.linalg.norm(found - grad.numpy()), float(grad.norm())
            assert off <= 1e-4 * size + 1e-7 * whole, f"d.{name} is {off:.2e} off of {size:.2e}"
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()


OPTIONS = {"lr": LR, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY, "clip": CLIP, "device": "software"}


@settings(max_examples=6)
@given(configs(), st.data())
def test_models_of_drawn_shapes_train_as_torchs(config: GPT2Config, data: st.DataObject) -> None:
    """Fails if a shape, kernel, activation or switch has other gradients than torch, or losses of ten steps differ."""
    shape = {
        "batch": data.draw(st.integers(1, 4)),
        "context": data.draw(st.integers(2, config.n_positions)),
        "accumulate": data.draw(st.integers(1, 2)),
        "recompute": data.draw(st.booleans()),
        "kernel": data.draw(st.sampled_from(["4x4", "4x8", "8x4"])),
    }
    with Trainer(config, **shape, **OPTIONS) as trainer:
        masked, smaller = data.draw(st.sampled_from([0.0, 0.6])), data.draw(st.booleans())
        compare_steps(trainer, 10, data.draw(st.integers(0, 100)), masked, smaller)


def test_parameters_end_where_torchs_do() -> None:
    """Fails if the parameters after ten steps differ from torch's, even if the losses are the same."""
    config = GPT2Config(vocab_size=53, n_positions=20, n_embd=30, n_layer=2, n_head=5, n_inner=37)
    with Trainer(config, batch=3, context=17, **OPTIONS | {"eps": 1e-4}) as trainer:  # a small eps amplifies rounding
        before = trainer.parameters()
        model, rng = theirs(trainer, 0), np.random.default_rng(1)
        named = {name.removeprefix("transformer."): p for name, p in model.named_parameters()}
        groups = [
            {"params": [p for p in named.values() if (p.ndim > 1) == m], "weight_decay": DECAY * m} for m in (1, 0)
        ]
        optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=1e-4)
        for _ in range(10):
            x, y = rng.integers(0, 53, (2, 3, 17))
            trainer.submit(x, y)
            optimizer.zero_grad()
            logits = model(torch.from_numpy(x), use_cache=False).logits
            cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
        for name, found in trainer.parameters().items():
            wanted, skipped = named[name].detach().numpy(), key_bias(name, found.size)
            off = np.abs(found - wanted).flatten()
            off[skipped] = 0
            assert off.max() <= 1e-4, f"{name} is {off.max():.2e} off"
            assert np.abs(wanted - before[name]).max() > 1e-3, name


def test_what_is_saved_loads_in_transformers(tmp_path: Path) -> None:
    """Fails if the checkpoint's names, shapes, switches or head differ from those that transformers expects."""
    for tied in (True, False):
        config = GPT2Config(
            vocab_size=29, n_positions=12, n_embd=12, n_layer=2, n_head=3, tie_word_embeddings=tied,
            activation_function="relu",
        )  # fmt: skip
        folder, x = tmp_path / str(tied), np.random.default_rng(0).integers(0, 29, (2, 12))
        with Trainer(config, batch=2, dropout=0.1, **OPTIONS) as trainer:
            for _ in range(30):
                trainer.submit(x, (x + 3) % 29)
            trainer.save(folder)
            found = list(trainer.generate_ids([4, 5], 8, temperature=0))
            loss = trainer.evaluate(x, x)
        model, report = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
        assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert model.config.resid_pdrop == 0.1
        model = model.eval().double()
        made = model.generate(torch.tensor([[4, 5]]), max_new_tokens=8, do_sample=False, eos_token_id=None)
        assert made[0, 2:].tolist() == found
        with torch.no_grad():
            logits = model(torch.from_numpy(x)).logits
        assert loss == pytest.approx(
            cross_entropy(logits.flatten(0, 1), torch.from_numpy(x).flatten()).item(), abs=1e-4
        )
