"""Tests interventions on every kind of activation, in captures and generations, and that a sweep plays one program."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.soak import mostly_soak

from glgpt import Ablate, Attend, LanguageModel, Patch, Scale, Steer
from glgpt.errors import GlgptError
from glgpt.gl.device import Device
from glgpt.inference import capture, programs
from glgpt.inference.interventions import Intervention

DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
OTHER = [7, 7, 2, 9, 1, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5, 2]
FAMILIES = ["wide", "llama-grouped"]  # GPT-2; Llama with three query heads for each key and value head


@pytest.fixture(params=FAMILIES)
def model(goldens: Path, request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    with LanguageModel.from_pretrained(goldens / request.param, device=DEVICE) as model:
        yield model


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that gets an item, a function's name, for each recorded program and each compiled shader."""
    seen: list[str] = []

    def watch(owner: Any, name: str) -> None:
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **more: seen.append(name) or plain(*args, **more))

    watch(capture, "capture_program")
    watch(programs, "edited_program")
    watch(Device, "compile")
    return seen


def logits(model: LanguageModel, ids: list[int], *interventions: Intervention) -> np.ndarray:
    return model.run_with_cache(ids, (), interventions=interventions)[0]


def width(model: LanguageModel, name: str) -> int:
    return model.config.activations[name].row_width


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h.1.attn.out", "h.0.attn.k", "h.1.attn.v", "h.0.attn.scores", "ln_f", "logits"])
def test_a_patch_of_another_text_brings_its_values(model: LanguageModel, name: str) -> None:
    """Fails if keys, values, scores, the last norm or logits cannot be changed, or change only in the first chunk."""
    _, found = model.run_with_cache(OTHER, [name])
    _, patched = model.run_with_cache(IDS, [name, "logits"], interventions=[Patch(name, found[name])])
    np.testing.assert_array_equal(patched[name], found[name])
    assert np.abs(patched["logits"] - model.logits(IDS)).max() > 1e-3


def test_attention_of_patched_queries_keys_and_values_is_the_other_texts(model: LanguageModel) -> None:
    names = [f"h.0.attn.{part}" for part in ("q", "k", "v", "scores", "pattern", "z")]
    _, found = model.run_with_cache(OTHER, names)
    patches = [Patch(name, found[name]) for name in names[:3]]
    _, patched = model.run_with_cache(IDS, names, interventions=patches)
    for name in names:
        np.testing.assert_allclose(patched[name], found[name], atol=1e-6, err_msg=name)


def test_scores_are_scaled_before_the_softmax(model: LanguageModel) -> None:
    names = ["h.0.attn.scores", "h.0.attn.pattern"]
    _, plain = model.run_with_cache(IDS, names)
    _, found = model.run_with_cache(IDS, names, interventions=[Scale(names[0], 2.0, head=1)])
    wanted = plain[names[0]].copy()
    wanted[1] *= 2
    np.testing.assert_allclose(found[names[0]], wanted, atol=1e-5)
    np.testing.assert_array_equal(np.delete(found[names[1]], 1, 0), np.delete(plain[names[1]], 1, 0))
    soft = np.exp(wanted[1] - wanted[1].max(-1, keepdims=True))
    np.testing.assert_allclose(found[names[1]][1], soft / soft.sum(-1, keepdims=True), atol=1e-5)


def test_scores_before_a_window_stay_masked(goldens: Path, tmp_path: Path) -> None:
    """Fails if an edit of scores makes tokens attend to keys before their window, or a patch with -inf is refused."""
    folder = shutil.copytree(goldens / "llama-grouped", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mistral", "sliding_window": 5}))
    names = ["h.0.attn.scores", "h.0.attn.pattern"]
    ahead = ~np.tri(len(IDS), dtype=bool) | np.tri(len(IDS), k=-5, dtype=bool)
    with LanguageModel.from_pretrained(folder, device=DEVICE) as model:
        plain, found = model.run_with_cache(IDS, names)
        assert (np.isneginf(found[names[0]]) == ahead).all()
        for change in (Ablate(names[0]), Scale(names[0], -1.0, head=1)):
            _, changed = model.run_with_cache(IDS, names, interventions=change)
            assert not changed[names[1]][:, ahead].any()
            np.testing.assert_allclose(changed[names[1]].sum(-1), 1, atol=1e-5)
        patched, _ = model.run_with_cache(IDS, names, interventions=Patch(names[0], found[names[0]]))
        np.testing.assert_allclose(patched, plain, atol=1e-5)
        hooked, _ = model.run_with_hooks(IDS, {names[0]: lambda scores: 0 * np.maximum(scores, 0)})
        np.testing.assert_allclose(hooked, logits(model, IDS, Ablate(names[0])), atol=1e-5)


def test_edits_of_one_activation_follow_each_other(model: LanguageModel) -> None:
    """Fails if an edit discards earlier edits of the activation, or changes other positions or heads."""
    rng, name = np.random.default_rng(1), "h.0.attn.z"
    heads, size = model.config.n_head, model.config.d_head
    values, direction = rng.normal(size=(4, heads * size)), rng.normal(size=heads * size)
    _, plain = model.run_with_cache(IDS, [name])
    wanted = plain[name].astype(np.float64)
    wanted[:, size : 2 * size] *= 3
    wanted[5:9] = values
    wanted[7:] += 2 * direction
    wanted[:, :size] = 0
    edits = [Scale(name, 3, head=1), Patch(name, values, first=5), Steer(name, direction, 2, first=7)]
    _, found = model.run_with_cache(IDS, [name], interventions=[*edits, Ablate("h.0.attn", head=0)])
    np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5)


def test_a_pattern_is_replaced_and_scaled_in_that_order(model: LanguageModel) -> None:
    name, n = "h.1.attn.pattern", len(IDS)
    _, plain = model.run_with_cache(IDS, [name])
    values = np.abs(np.random.default_rng(0).normal(size=(model.config.n_head, n, n))).astype(np.float32)
    edits = [Patch(name, values), Scale(name, 0.5), Attend("h.1.attn", "first", head=1), Scale(name, 3, head=1)]
    _, found = model.run_with_cache(IDS, [name], interventions=edits)
    wanted = 0.5 * values
    wanted[1] = 3 * np.eye(1, n)
    np.testing.assert_allclose(found[name], wanted, rtol=1e-6)
    _, found = model.run_with_cache(IDS, [name], interventions=edits[2:3])
    np.testing.assert_array_equal(np.delete(found[name], 1, 0), np.delete(plain[name], 1, 0))


def every_kind(model: LanguageModel) -> list[list[Intervention]]:
    rng = np.random.default_rng(3)
    keys = (model.config.n_kv_head, model.config.d_head)
    return [
        [Scale("logits", -1.0)],
        [Steer("ln_f", rng.normal(size=model.config.n_embd), first=21)],
        [Ablate("h.0.attn.q", head=1), Steer("h.1.attn.k", rng.normal(size=keys), 3.0), Scale("h.0.attn.v", -2.0)],
        [Scale("h.0.attn.scores", -1.0), Attend("h.1.attn", "previous")],
        [Scale("h.0", -2.0), Patch("h.1.mlp.act", rng.normal(size=(22, width(model, "h.1.mlp.act"))))],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("case", mostly_soak(range(5), (0, 2)))
def test_a_generation_is_that_of_its_logits(model: LanguageModel, case: int) -> None:
    """Fails if an edit applies only to the prompt, to a wrong position, or after the next token was chosen."""
    interventions = every_kind(model)[case]
    text = list(IDS)
    for _ in range(6):
        text.append(int(logits(model, text, *interventions)[-1].argmax()))
    found = list(model.generate_ids(IDS, 6, temperature=0, eos=False, interventions=interventions))
    assert found == text[len(IDS) :]
    assert found != list(model.generate_ids(IDS, 6, temperature=0, eos=False))


def test_interleaved_generations_keep_their_edits(model: LanguageModel) -> None:
    """Fails if a generation uses the factor of another generation that plays the same program."""
    edits = [[Scale(f"h.{layer}.mlp", factor)] for layer, factor in ((0, -3.0), (1, 4.0), (1, -4.0))]
    how: dict[str, Any] = {"temperature": 0, "eos": False}
    alone = [list(model.generate_ids(IDS, 6, interventions=e, **how)) for e in edits]
    running = [model.generate_ids(IDS, 6, interventions=e, **how) for e in edits]
    assert [list(texts) for texts in zip(*(zip(*running, strict=True)), strict=True)] == alone
    assert len(model._edited) == 1 and len({tuple(text) for text in alone}) == 3


def test_more_sets_of_interventions_than_are_retained_continue(model: LanguageModel) -> None:
    """Fails if a new generation closes the program of a generation that is still running."""
    edits = [[Ablate("h.0.mlp")], [Ablate("h.0.attn")], [Attend("h.0.attn", "uniform")]]
    how: dict[str, Any] = {"temperature": 0, "eos": False}
    alone = [list(model.generate_ids(IDS, 4, interventions=e, **how)) for e in edits]
    running = [model.generate_ids(IDS, 4, interventions=e, **how) for e in edits]
    assert [list(texts) for texts in zip(*(zip(*running, strict=True)), strict=True)] == alone


def test_close_releases_the_textures_of_open_generations(goldens: Path) -> None:
    """Regression: `close` did not release a program that an open generation used and the model no longer retained."""
    with LanguageModel.from_pretrained(goldens / "dhead2-gelu", device="software") as model:
        edits = [[Ablate("h.0.mlp")], [Ablate("h.0.attn")], [Attend("h.0.attn", "uniform")]]
        running = [model.generate_ids(IDS, 4, interventions=e, temperature=0, eos=False) for e in edits]
        for run in running:
            next(run)
    assert model.device.texture_bytes == 0
    with pytest.raises(GlgptError, match="is closed; load it again"):
        next(running[0])


def test_a_sweep_plays_one_program(goldens: Path, recorded: list[str]) -> None:
    """Fails if a new program is recorded, and its shaders compiled, for each layer, head, position or value."""
    with LanguageModel.from_pretrained(goldens / "llama-grouped", device=DEVICE) as model:
        _, other = model.run_with_cache(OTHER, ["h.0.resid_post", "h.1.resid_post"])
        model.logits(IDS)
        recorded.clear()
        seen = set()
        for layer in range(2):
            for position in range(len(IDS)):
                values = other[f"h.{layer}.resid_post"][position : position + 1]
                seen.add(logits(model, IDS, Patch(f"h.{layer}.resid_post", values, position)).tobytes())
        compiled = recorded.count("compile")
        assert recorded.count("capture_program") == 1 and compiled <= 3  # shaders of the edit, for two chunk sizes
        assert len(seen) == 2 * len(IDS)
        for head in range(3):
            seen.add(logits(model, IDS, Ablate("h.1.attn", head=head)).tobytes())
        assert recorded.count("capture_program") == 2 and len(seen) == 2 * len(IDS) + 3
        model.logits(IDS)  # plays the program without interventions, which the model still retains
        assert recorded.count("capture_program") == 2
        recorded.clear()
        for factor in (2.0, 3.0, -1.0):
            list(model.generate_ids(IDS, 2, temperature=0, interventions=[Scale("h.1.mlp", factor)]))
        assert recorded.count("edited_program") == 1


def test_shaders_are_shared_by_their_text(goldens: Path, device: Device, recorded: list[str]) -> None:
    """Fails if a second model of the same shape recompiles shaders, or loses them when the first model is closed."""
    with LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as model:
        wanted = list(model.generate_ids(IDS, 3, temperature=0))
        recorded.clear()
        with LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as second:
            assert list(second.generate_ids(IDS, 3, temperature=0)) == wanted
            assert not recorded
            model.close()
            assert list(second.generate_ids(IDS[:3], 3, temperature=0))


def test_the_memory_limit_holds_for_interventions(goldens: Path) -> None:
    with LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as model:
        own = model.player.program.nbytes()
    with (
        LanguageModel.from_pretrained(goldens / "wide", device=DEVICE, max_texture_memory=own) as model,
        pytest.raises(GlgptError, match=r"capturing these activations needs .* allow more"),
    ):
        logits(model, IDS, Ablate("h.0.attn"))


def test_one_activation_is_steered_or_patched(goldens: Path) -> None:
    with LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as model:
        zeros = np.zeros((1, model.config.n_embd), np.float32)
        for change in (Steer("h.0", zeros[0]), Patch("h.0", zeros)):
            with pytest.raises(GlgptError, match=r"h\.0 has several activations; name one: h\.0\."):
                logits(model, IDS, change)
        with pytest.raises(GlgptError, match="must be an array of numbers"):
            logits(model, IDS, Steer("h.0.resid_post", [10**5000] * len(zeros[0])))  # type: ignore[arg-type]
