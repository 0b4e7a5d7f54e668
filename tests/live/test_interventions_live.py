"""Compares interventions with forward hooks in `transformers`, on the embedded model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from glgpt import Ablate, Attend, LanguageModel, Patch, Scale, Steer
from glgpt.checkpoint.finding import embedded_weights
from glgpt.errors import GlgptError
from glgpt.inference.interventions import Intervention

TEXT = "JULIET:\nO Romeo, Romeo! wherefore art thou"
ATOL = 1e-4


@pytest.fixture
def model() -> Iterator[LanguageModel]:
    with LanguageModel.from_pretrained() as model:
        yield model


@pytest.fixture
def ids(model: LanguageModel) -> list[int]:
    return model.encode(TEXT)


@pytest.fixture(scope="module")
def reference() -> Any:
    found = transformers.GPT2LMHeadModel.from_pretrained(embedded_weights(), attn_implementation="eager")
    return found.double().eval()


def hooked(reference: Any, ids: list[int], *hooks: tuple[str, str, Callable[[Any], Any]]) -> np.ndarray:
    """Returns the logits with hooks. A hook is (module, "in" or "out", function of the module's input or output)."""

    def before(change: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda _, args: (change(args[0].clone()), *args[1:])

    def after(change: Callable[[Any], Any]) -> Callable[..., Any]:
        def hook(_: Any, __: Any, out: Any) -> Any:
            return (change(out[0].clone()), *out[1:]) if isinstance(out, tuple) else change(out.clone())

        return hook

    handles = []
    for name, which, change in hooks:
        module = reference.get_submodule(f"transformer.{name}")
        add = module.register_forward_pre_hook if which == "in" else module.register_forward_hook
        handles.append(add((before if which == "in" else after)(change)))
    try:
        with torch.no_grad():
            return np.asarray(reference(torch.tensor([ids])).logits[0])
    finally:
        for handle in handles:
            handle.remove()


def zeroed(x: Any, *columns: slice) -> Any:
    x[..., columns[0] if columns else slice(None)] = 0
    return x


def doubled(x: Any, first: int, end: int) -> Any:
    x[..., first:end] *= 2
    return x


DIRECTION = np.random.default_rng(0).normal(size=256)
OTHER = np.random.default_rng(1).normal(size=(3, 256))


def placed(x: Any) -> Any:
    x[0, 2:5] = torch.tensor(OTHER)
    return x


def moved(x: Any) -> Any:
    x[0, 4:] += torch.tensor(2 * DIRECTION)
    return x


CASES: dict[str, tuple[list[Intervention], list[tuple[str, str, Callable[[Any], Any]]]]] = {
    "a head": ([Ablate("h.3.attn", head=5)], [("h.3.attn.c_proj", "in", lambda x: zeroed(x, slice(160, 192)))]),
    "attention": ([Ablate("h.2.attn")], [("h.2.attn.c_proj", "out", zeroed)]),
    "an MLP": ([Ablate("h.1.mlp")], [("h.1.mlp", "out", zeroed)]),
    "a block": ([Ablate("h.4")], [("h.4.attn.c_proj", "out", zeroed), ("h.4.mlp", "out", zeroed)]),
    "half an MLP": ([Scale("h.5.mlp", 0.5)], [("h.5.mlp", "out", lambda x: 0.5 * x)]),
    "hidden": ([Ablate("h.0.mlp.act")], [("h.0.mlp.c_proj", "in", zeroed)]),
    "steering": ([Steer("h.2.resid_post", DIRECTION, 2.0, first=4)], [("h.2", "out", moved)]),
    "a patch": ([Patch("h.1.attn.out", OTHER, first=2)], [("h.1.attn.c_proj", "out", placed)]),
    "keys of a head": (
        [Scale("h.2.attn.k", 2.0, head=1)],
        [("h.2.attn.c_attn", "out", lambda x: doubled(x, 288, 320))],
    ),
    "values": ([Ablate("h.0.attn.v")], [("h.0.attn.c_attn", "out", lambda x: zeroed(x, slice(512, 768)))]),
    "the last norm": ([Patch("ln_f", OTHER, first=2)], [("ln_f", "out", placed)]),
    "two of them": (
        [Ablate("h.3.attn", head=5), Scale("h.3.attn", 3.0, head=0)],
        [("h.3.attn.c_proj", "in", lambda x: zeroed(torch.cat([3 * x[..., :32], x[..., 32:]], -1), slice(160, 192)))],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers_with_hooks(
    model: LanguageModel, ids: list[int], reference: Any, case: str
) -> None:
    interventions, hooks = CASES[case]
    expected = hooked(reference, ids, *hooks)
    found, _ = model.run_with_cache(ids, (), interventions=interventions)
    np.testing.assert_allclose(found, expected, atol=ATOL)
    assert np.abs(expected - model.logits(ids)).max() > 0.1  # the intervention has an effect


@pytest.mark.parametrize("case", ["a head", "a block", "steering"])
def test_generation_is_that_of_transformers_with_hooks(
    model: LanguageModel, ids: list[int], reference: Any, case: str
) -> None:
    """Compares tokens generated with a KV cache. Fails if an intervention misses the prompt or a later token."""
    interventions, hooks = CASES[case]
    plain = list(model.generate_ids(ids, 12, temperature=0))
    text = list(ids)
    for _ in range(12):
        text.append(int(hooked(reference, text, *hooks)[-1].argmax()))
    found = list(model.generate_ids(ids, 12, temperature=0, interventions=interventions))
    assert found == text[len(ids) :]
    assert plain == list(model.generate_ids(ids, 12, temperature=0))  # the model itself is unchanged


@pytest.mark.parametrize("pattern", ["uniform", "previous", "first"])
def test_a_pattern_is_replaced_in_one_head(model: LanguageModel, ids: list[int], pattern: str) -> None:
    name, n = "h.2.attn.pattern", len(ids)
    wanted = {"uniform": np.tril(np.ones((n, n))), "previous": np.eye(n, k=-1), "first": np.eye(1, n).repeat(n, 0)}[
        pattern
    ]
    wanted[0, 0] = 1
    wanted /= wanted.sum(1, keepdims=True)
    plain = model.run_with_cache(ids, [name])[1][name]
    _, found = model.run_with_cache(
        ids, [name, "h.2.attn.z", "h.2.attn.v"], interventions=[Attend("h.2.attn", pattern, 3)]
    )
    np.testing.assert_allclose(found[name][3], wanted, atol=1e-6)
    np.testing.assert_array_equal(np.delete(found[name], 3, 0), np.delete(plain, 3, 0))
    np.testing.assert_allclose(found["h.2.attn.z"][:, 96:128], wanted @ found["h.2.attn.v"][3], atol=1e-5)


def test_a_patch_of_another_prompt_brings_its_answer(model: LanguageModel, ids: list[int]) -> None:
    """Fails if a patch of the residual stream before the last norm does not give the logits of the patch's text."""
    other = model.encode("First Citizen:\nBefore we proceed any further, hear")[: len(ids)]
    logits, found = model.run_with_cache(other, ["h.5.resid_post"])
    patched, _ = model.run_with_cache(ids, (), interventions=[Patch("h.5.resid_post", found["h.5.resid_post"])])
    np.testing.assert_allclose(patched, logits, atol=1e-5)


def test_hooks_are_functions_in_the_order_of_computation(model: LanguageModel, ids: list[int], reference: Any) -> None:
    seen: list[np.ndarray] = []

    def doubled(z: np.ndarray) -> np.ndarray:
        seen.append(z)
        return 2 * z

    hooks = {
        "h.4.mlp.out": lambda x: x - x.mean(-1, keepdims=True),
        "h.1.attn.z": doubled,
        "h.2.attn": Ablate("h.2.attn"),
    }
    with pytest.raises(GlgptError, match="not an activation"):
        model.run_with_hooks(ids, hooks)
    hooks["h.2.attn.out"] = hooks.pop("h.2.attn")
    found, caught = model.run_with_hooks(ids, hooks, ["h.1.attn.z"])
    expected = hooked(
        reference,
        ids,
        ("h.1.attn.c_proj", "in", lambda x: 2 * x),
        ("h.2.attn.c_proj", "out", zeroed),
        ("h.4.mlp", "out", lambda x: x - x.mean(-1, keepdim=True)),
    )
    np.testing.assert_allclose(found, expected, atol=ATOL)
    np.testing.assert_allclose(caught["h.1.attn.z"], 2 * seen[0], atol=1e-6)
    with pytest.raises(GlgptError, match="returned shape"):
        model.run_with_hooks(ids, {"h.1.attn.z": lambda z: z[:1]})


@pytest.mark.parametrize(
    ("intervention", "said"),
    [
        (Ablate("h.9.attn"), "not a part of this model"),
        (Ablate("h.3.attn", head=8), "head 8 is not one of the 8"),
        (Scale("h.0.mlp.out", 2, head=1), "has no heads"),
        (Steer("h.0.attn.k", np.zeros(32)), "must be 8 x 32 finite numbers"),
        (
            Patch("h.0.attn.scores", np.zeros((8, 3, 3)), first=1),
            r"values .* are \[head, T, T\]; .* from position 1 on",
        ),
        (Patch("h.0.mlp.out", np.full((1, 256), np.nan)), "must be finite"),
        (Steer("h.0.resid_post", np.zeros(3)), "must be 256 finite numbers"),
        (Patch("h.0.resid_post", np.zeros((300, 256))), "positions 0 to 299 are not within the model's 256"),
        (Attend("h.0.attn", "sideways"), "is not one of uniform"),
        ("h.0", "must be an intervention"),
    ],
)
def test_what_cannot_be_done_is_said(model: LanguageModel, ids: list[int], intervention: Any, said: str) -> None:
    with pytest.raises(GlgptError, match=said):
        model.generate(TEXT, 1, interventions=[intervention])
