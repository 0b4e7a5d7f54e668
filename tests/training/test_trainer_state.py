"""Tests a trainer's state: checkpoints, samples, late results, values that are not finite, refusals, memory."""

from __future__ import annotations

import io
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import moderngl
import numpy as np
import pytest
from helpers.tiny_trainer import BATCH, CONFIG, DEVICE, TINY, examples, same, trainer
from safetensors.numpy import load_file

from glgpt.checkpoint.safetensors_file import safetensors_places, sha256
from glgpt.checkpoint.safetensors_writer import SafetensorsWriter
from glgpt.errors import GlgptError
from glgpt.gl.device import Device, open_device
from glgpt.gl.player import Player
from glgpt.inference.model import LanguageModel
from glgpt.training import state
from glgpt.training.textures import TrainingTextures
from glgpt.training.trainer import MAX_IN_FLIGHT, Trainer

# States


@pytest.mark.slow
def test_a_loaded_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Fails if a checkpoint lacks something that training needs: a moment, the step's number, the seed of dropout."""
    options = {"dropout": 0.2, "accumulate": 2, "seed": 2**32 - 1, "lr": 5e-3, "betas": (0.9, 0.99)}
    batches = [examples(2 * BATCH, i) for i in range(6)]
    with trainer(**options) as t:
        for batch in batches[:3]:
            t.submit(*batch)
        t.save(tmp_path)
        losses = [t.step(*batch) for batch in batches[3:]]
        whole, loss = t.parameters() | {"d": t.gradients()["wte.weight"]}, t.evaluate(*examples())
    with Trainer.load(tmp_path, device=DEVICE, kernel="4x4") as t:
        assert t.steps_done == 3
        assert [t.step(*batch) for batch in batches[3:]] == losses
        assert same(t.parameters() | {"d": t.gradients()["wte.weight"]}, whole)
        assert t.evaluate(*examples()) == loss
    with Trainer.load(tmp_path, device=DEVICE, kernel="4x4", seed=1) as t:
        assert t.step(*batches[3]) != losses[0]


def test_a_trainer_saves_all_settings_that_it_accepts(tmp_path: Path) -> None:
    """Regression: saving failed for NumPy's numbers, and a saved learning rate of 0 was reported as damage."""
    options = {"lr": 0.0, "accumulate": np.int64(2), "weight_decay": np.float32(0.5), "recompute": np.True_}
    options |= {"eps": np.float64(1e-7), "clip": 1, "dropout": 0, "betas": (0, np.float32(0.5))}
    with trainer(**options, batch=np.int64(BATCH), context=np.int32(4)) as t:
        t.save(tmp_path)
        recipe = t.recipe
    with Trainer.load(tmp_path, device=DEVICE) as t:
        assert (t.recipe, t.lr) == (recipe, 0.0)


def test_a_checkpoint_is_written_tensor_by_tensor(tmp_path: Path) -> None:
    """Fails if saving needs memory for more than one tensor, or the safetensors library reads other values."""
    config = replace(TINY, n_embd=64, n_layer=4)
    held: list[weakref.ref[Any]] = []
    values = np.random.default_rng(1)
    written: dict[str, Any] = {}

    class Arrays(Mapping[str, Any]):
        def __init__(self, suffix: str) -> None:
            self.names = [name + suffix for name in config.parameters]

        def __getitem__(self, key: str) -> Any:
            assert not any(ref() is not None for ref in held), "an earlier array is still in memory"
            array = values.standard_normal(config.parameters.get(key, config.parameters.get(key[:-2])).shape)  # type: ignore[union-attr]
            array = array.astype(np.float32)
            written[key] = array.copy()
            held.append(weakref.ref(array))
            return array

        def __iter__(self) -> Iterator[str]:
            return iter(self.names)

        def __len__(self) -> int:
            return len(self.names)

    seen: list[tuple[int, int]] = []
    about = {"recipe": {"dropout": 0.0}}
    state.write(tmp_path, config, Arrays(""), Arrays(".m"), about, progress=lambda *at: seen.append(at))
    assert seen == [(n, len(written)) for n in range(len(written) + 1)]
    assert same(load_file(tmp_path / state.STATE), written)
    stored = {config.stored_name(name): written[name] for name in config.parameters}
    assert same(load_file(tmp_path / "model.safetensors"), stored)
    places, _ = safetensors_places(tmp_path / "model.safetensors")
    assert all(place.sha256 == sha256(stored[name]) for name, place in places.items())


def test_a_writer_takes_only_the_tensors_of_its_header() -> None:
    writer = SafetensorsWriter(io.BytesIO(), {"a": (2,), "b": (0, 3)}, dict)
    for name, shape in (("b", (0, 3)), ("a", (3,))):
        with pytest.raises(ValueError, match="not the next one"):
            SafetensorsWriter(io.BytesIO(), {"a": (2,), "b": (0, 3)}, dict).add(name, np.zeros(shape, np.float32))
    writer.add("a", np.ones(2, np.float32))
    with pytest.raises(ValueError, match="tensor b was not written"):
        writer.finish()
    writer.add("b", np.ones((0, 3), np.float32))
    writer.finish()
    with pytest.raises(ValueError, match="not the next one"):
        writer.add("a", np.ones(2, np.float32))


@pytest.mark.slow
def test_a_shape_left_open_is_that_of_the_largest_step(tmp_path: Path) -> None:
    """Fails if parameters are lost when the shape grows, or a saved training resumes with other bits."""
    steps = [examples(2, 0, CONFIG, 5), examples(3, 1, CONFIG, 7), examples(1, 2, CONFIG, 3), examples(2, 3, CONFIG, 8)]
    with trainer(batch=None, context=None, dropout=0.1, lr=5e-3) as t:
        assert t.submit(*steps[0]) == []
        found = t.submit(*steps[1])  # the shape grows, which waits for the previous step
        assert [r.step for r in found] == [1] and (t.recipe.batch, t.recipe.context) == (3, 8)
        t.save(tmp_path)
        losses = [t.step(*batch) for batch in steps[2:]]
        whole, judged = t.parameters(), t.evaluate(*steps[1])
    with Trainer.load(tmp_path, device=DEVICE, kernel="4x4") as t:
        assert [t.step(*batch) for batch in steps[2:]] == losses
        assert same(t.parameters(), whole) and t.evaluate(*steps[1]) == judged
        with pytest.raises(GlgptError, match="context of 11 tokens is beyond"):
            t.step(*examples(1, 2, CONFIG, 11))
        assert np.isfinite(t.step(*steps[0]))  # the trainer still works


@pytest.mark.soak
@pytest.mark.slow
def test_a_saved_training_keeps_its_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a resumed training uses the kernel of a new probe: its sums may have other bits."""
    with trainer(kernel="8x4", fetch="texelFetch") as t:
        t.save(tmp_path)
    with Trainer.load(tmp_path, device=DEVICE) as t:
        assert (t.choice.kernel.name, t.choice.options.fetch) == ("8x4", "texelFetch")
    with Trainer.load(tmp_path, device=DEVICE, kernel="4x4") as t:
        assert t.choice.kernel.name == "4x4"
    monkeypatch.setattr(open_device(DEVICE), "renderer", "another")
    with Trainer.load(tmp_path, device=DEVICE, fetch="textureLod") as t:
        assert t.choice.options.fetch == "textureLod"


def test_a_good_state_is_not_called_damaged(tmp_path: Path) -> None:
    """Fails if a wrong setting or device is reported as a damaged file, so that a user discards a good run."""
    with trainer() as t:
        t.save(tmp_path)
    for options, why in (
        ({"lr": -1}, "^lr is -1"),
        ({"lr": 1e39}, "^lr is 1e.39"),
        ({"kernel": "zz"}, "^kernel 'zz'"),
        ({"device": 99}, "^no EGL device|99"),
    ):
        with pytest.raises(GlgptError, match=why) as caught:
            Trainer.load(tmp_path, **({"device": DEVICE} | options))
        assert "damaged" not in str(caught.value)


def test_gradients_of_another_shape_are_not_made_up() -> None:
    """Fails if zeros are returned as gradients after an evaluation of a longer context has discarded the gradients."""
    with trainer(batch=None, context=None, seed=np.int64(3), lr=np.float32(1e-3)) as t:
        t.step(*examples(2, 0, CONFIG, 5))
        t.evaluate(*examples(2, 0, CONFIG, 4))
        assert np.abs(t.gradients()["wte.weight"]).max() > 0
        t.evaluate(*examples(2, 0, CONFIG, 9))
        with pytest.raises(GlgptError, match="gradients are gone"):
            t.gradients()
        t.step(*examples(2, 0, CONFIG, 5), lr=np.float32(1e-3))
        assert np.abs(t.gradients()["wte.weight"]).max() > 0
        with pytest.raises(GlgptError, match="differ in length"):
            t.step([[1, 2], [1]], [[1, 2], [1]])


def test_a_sample_continues_after_the_shape_has_grown() -> None:
    """Fails if a sample that is being generated keeps using the program that was closed when the shape grew."""
    with trainer(context=None) as t:
        t.step(*examples(context=4))
        wanted = list(t.generate_ids([1, 2], 6, seed=3))
        sample = t.generate_ids([1, 2], 6, seed=3)
        found = [next(sample), next(sample)]
        t.evaluate(*examples(context=9))
        assert t.recipe.context > 4 and found + list(sample) == wanted


def test_broken_parameters_are_not_saved(tmp_path: Path) -> None:
    with trainer() as t:
        t.save(tmp_path)
        good = (tmp_path / "state.safetensors").read_bytes()
        t.textures.write("ln_f.bias", np.full(CONFIG.n_embd, np.inf, np.float32))
        with pytest.raises(GlgptError, match=r"ln_f\.bias holds a NaN or an infinity, so nothing was saved"):
            t.save(tmp_path)
    assert (tmp_path / "state.safetensors").read_bytes() == good


@pytest.mark.slow
def test_a_seed_gives_its_bits() -> None:
    """Fails if a seed does not repeat a run, or all seeds give the same initial parameters."""
    found = []
    for seed in (3, 3, 4):
        with trainer(seed=seed, dropout=0.1) as t:
            fresh = t.parameters()
            t.step(*examples())
            found.append((fresh, t.parameters()))
    assert same(found[0][0], found[1][0]) and same(found[0][1], found[1][1])
    assert not np.array_equal(found[0][0]["wte.weight"], found[2][0]["wte.weight"])


def test_what_is_saved_writes_the_same_text(tmp_path: Path) -> None:
    """Fails if the weights do not load as a model, or the trainer does not generate with its current weights."""
    x, _ = examples()
    with trainer(lr=1e-2) as t:
        for _ in range(20):
            t.submit(x, (x + 5) % CONFIG.vocab_size)  # greedy text then follows this rule, without near ties
        found = list(t.generate_ids([3], 6, temperature=0))
        sampled = list(t.generate_ids([3], 6, seed=1))
        assert sampled == list(t.generate_ids([3], 6, seed=1))
        t.save(tmp_path)
        tokens = t.generate_ids([3], 4, temperature=0)
        after = [3, next(tokens)]
        for _ in range(3):  # an active generation continues with the new parameters
            t.step(x, (x + 2) % CONFIG.vocab_size, lr=0.1)
        assert next(tokens) == next(t.generate_ids(after, 1, temperature=0))
        tokens.close()
    with LanguageModel.from_pretrained(tmp_path, device=DEVICE) as model:
        assert list(model.generate_ids([3], 6, temperature=0)) == found
    assert len(set(found)) > 1


def test_results_come_late_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a step waits for the device, or a result is lost."""
    with trainer() as t:
        batch = examples()
        t.step(*batch)  # compiles the shaders
        with monkeypatch.context() as patch:
            for name in ("read", "finish"):
                patch.setattr(Player, name, lambda *_: pytest.fail("a step waits"))
            found = [t.submit(*batch) for _ in range(MAX_IN_FLIGHT + 4)]
        assert [len(results) for results in found] == [0] * (MAX_IN_FLIGHT + 1) + [1] * 3
        rest = t.drain()
        assert [r.step for r in [*chain(*found), *rest]] == list(range(2, MAX_IN_FLIGHT + 6))
        assert t.drain() == []
        assert [r.loss for r in rest] == sorted((r.loss for r in rest), reverse=True)


@pytest.mark.parametrize(("owner", "where"), [(moderngl.Buffer, "read"), (moderngl.TextureArray, "read_into")])
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_results_belong_to_their_steps_after_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, owner: type, where: str, precision: str
) -> None:
    """Fails if Ctrl-C, while a step waits for the device, gives later steps the results of other steps, or none."""
    with trainer(precision=precision) as t:
        batch, original = examples(), getattr(owner, where)

        def interrupted(*args: Any, **options: Any) -> None:
            original(*args, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, where, interrupted)
            t.step(*batch)
        assert t.steps_done == 1
        numbers = [r.step for _ in range(MAX_IN_FLIGHT + 4) for r in t.submit(*batch)] + [r.step for r in t.drain()]
        assert numbers == list(range(1 if where == "read" else 2, MAX_IN_FLIGHT + 6))
        loss = t.evaluate(*batch)
        assert t.step(*batch) == pytest.approx(loss, rel=1e-3)


# Values that are not finite, and refusals


@pytest.mark.parametrize(
    ("name", "value", "first"),
    [("h.1.mlp.c_fc.weight", np.nan, "h.1.mlp.c_fc.weight"), ("ln_f.weight", 3e38, "d.ln_f.bias")],
)
def test_a_step_that_is_not_finite_changes_nothing(name: str, value: float, first: str) -> None:
    """Fails if NaN spreads to parameters and moments, or `not_finite` does not name its origin."""
    with trainer() as t:
        t.step(*examples())
        assert t.not_finite() is None
        good = t.parameters()[name]
        t.textures.write(name, np.full_like(good, value))
        before = t.parameters()
        (result,) = [*t.submit(*examples()), *t.drain()]
        assert not np.isfinite([result.loss, result.grad_norm]).all()
        assert same(t.parameters(), before)
        assert t.not_finite() == first
        t.textures.write(name, good)
        moments = [t.textures.read(n, "", ".moment") for n in before]
        assert all(np.isfinite(m).all() for m in moments)
        assert np.isfinite(t.step(*examples()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 11}, "context of 11 tokens is beyond"), ({"context": 0}, "context is 0"),
        ({"batch": 0}, "batch is 0"), ({"batch": 2.5}, "batch is 2.5"),
        ({"accumulate": 0}, "accumulate is 0"), ({"accumulate": 257}, "257 micro-batches"),
        ({"dropout": 1.0}, "dropout is 1.0"), ({"dropout": -0.1}, "dropout"), ({"clip": np.nan}, "clip is nan"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": 0.9}, "betas are 0.9"), ({"betas": (0.9, "x")}, "two numbers"),
        ({"eps": 0.0}, "eps is 0.0"), ({"weight_decay": -1}, "weight_decay is -1"),
        ({"seed": -1}, "seed is -1"), ({"seed": 2**32}, "seed"), ({"kernel": "9x9"}, "kernel '9x9'"),
        ({"recompute": "no"}, "recompute is 'no'"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GlgptError, match=message) as caught:
        trainer(**options)
    assert "\n" not in str(caught.value)


def test_bad_arrays_are_refused() -> None:
    x, y = examples()
    with trainer(clip=1, eps=1, weight_decay=1) as t:  # integers are accepted as numbers
        before = t.parameters()
        name = list(before)[-1]
        other = {n: a + 1 for n, a in before.items()}
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: t.step(x[:1], y), r"inputs \[1, 9\] and targets \[2, 9\] must be rows of ids of the same shape"),
            (lambda: t.step(x, y[:, :3]), r"targets \[2, 3\]"),
            (lambda: t.step(*examples(3)), r"inputs are \[3, 9\]; this trainer takes at most \[2, 9\]"),
            (lambda: t.step(*examples(context=10)), r"inputs are \[2, 10\]; this trainer takes at most \[2, 9\]"),
            (lambda: t.step(x.astype(float), y), "inputs are float64, not integers"),
            (lambda: t.step(x + 23, y), r"inputs hold id \d+, outside the vocabulary of 23"),
            (lambda: t.step(x - 23, y), "inputs hold id -"),
            (lambda: t.step(x, y - 23), "targets hold id -"),
            (lambda: t.step(x, y, lr=np.nan), "lr is nan"),
            (lambda: t.evaluate(x, y[:1]), r"inputs \[2, 9\] and targets \[1, 9\]"),
            (lambda: t.evaluate(x[:0], y[:0]), "must be rows"),
            (lambda: t.evaluate(x[0], y[0]), "must be rows"),
            (lambda: list(t.generate_ids([], 1)), "a prompt is 1 to 10 ids below 23"),
            (lambda: list(t.generate_ids([23], 1)), "ids below 23"),
            (lambda: list(t.generate_ids([0] * 11, 1)), "1 to 10 ids"),
            (lambda: t.set_parameters({n: a for n, a in other.items() if n != name}), f"{name} is missing"),
            (lambda: t.set_parameters(other | {name: other[name][1:]}), r"shape \[11\]; it must have \[12\]"),
            (lambda: t.set_parameters(other | {name: "x"}), f"{name} is 'x'; it must be an array of numbers"),
            (lambda: t.set_moments(other.__getitem__, -1), "steps_done is -1"),
        ]
        for call, message in calls:
            with pytest.raises(GlgptError, match=message):
                call()
        assert same(t.parameters(), before) and t.steps_done == 0
        assert np.isfinite(t.step(x, y))


def test_a_folder_without_a_state_is_refused(goldens: Path, tmp_path: Path) -> None:
    with pytest.raises(GlgptError, match="holds no training state"):
        Trainer.load(goldens / "wide")
    with trainer(TINY, context=4) as t:
        t.save(tmp_path)
    state = tmp_path / "state.safetensors"
    for damage in (state.read_bytes()[:-9], b"", b"x" * 100):
        state.write_bytes(damage)
        with pytest.raises(GlgptError, match=r"state\.safetensors is not a valid safetensors file"):
            Trainer.load(tmp_path, device=DEVICE)


# Memory


@pytest.mark.slow
def test_steps_take_no_more_than_the_plan(device: Device) -> None:
    before = dict(device.live), device.texture_bytes
    x, y = examples(config=TINY, context=4)
    with trainer(TINY, context=4) as t:
        assert device.texture_bytes - before[1] == sum(t.memory.values()) == t.player.program.nbytes()

        def round_() -> None:
            for _ in range(40):
                t.submit(x, y)
            t.evaluate(x, y)
            list(t.generate_ids([1], 3, temperature=0))

        round_()
        live, taken = dict(device.live), device.texture_bytes
        for _ in range(4):
            round_()
        assert t.steps_done == 200
        assert (device.live, device.texture_bytes) == (live, taken)
    t.close()
    assert (device.live, device.texture_bytes) == before


def test_a_constructor_that_fails_leaves_nothing(
    device: Device, goldens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if textures stay on the device after loading a checkpoint failed midway."""
    monkeypatch.setattr(TrainingTextures, "write", lambda *_: (_ for _ in ()).throw(GlgptError("cut short")))
    before = dict(device.live), device.texture_bytes
    with pytest.raises(GlgptError, match="cut short"):
        trainer(goldens / "training")
    assert (device.live, device.texture_bytes) == before


def test_a_loaded_model_is_trained_and_what_is_no_model_is_named(goldens: Path) -> None:
    """Fails if `Trainer(model)` treats the object as a path, and reports that it is neither a folder nor a Hub name."""
    folder = goldens / "training"
    options = {"device": DEVICE, "kernel": "4x4"}
    with (
        LanguageModel.from_pretrained(folder, "f16", **options) as model,
        Trainer(model, **options) as t,
        Trainer(folder, **options) as other,
    ):
        assert same(t.parameters(), other.parameters())
    with pytest.raises(
        TypeError, match="model is a dict; pass a config, a loaded LanguageModel, a folder or a Hub name"
    ):
        Trainer({})  # type: ignore[arg-type]


def test_compiling_is_said_and_shorter_steps_compile_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if compiling for a larger shape (it can take half a minute) is not logged, or a smaller step compiles."""
    caplog.set_level(logging.INFO, "glgpt.training.trainer")
    built: list[str] = []
    build = Player._build
    monkeypatch.setattr(Player, "_build", lambda self, entry: built.append(entry.name) or build(self, entry))
    with trainer(batch=None, context=None) as t:
        t.step(*examples(2, 0, CONFIG, 5))
        t.step(*examples(2, 0, CONFIG, 5))
        before = len(built)
        t.step(*examples(1, 0, CONFIG, 4))
        t.evaluate(*examples(3, 0, CONFIG, 2))
        t.evaluate(*examples(1, 0, CONFIG, 5))
        t.step(*examples(2, 0, CONFIG, 1))
        assert built[before:] == ["evaluate"]
        assert said(caplog) == [(logging.INFO, "2 x 5")]
        t.step(*examples(3, 0, CONFIG, 6))
        t.step(*examples(1, 0, CONFIG, 8))
        t.step(*examples(1, 0, CONFIG, 9))
        t.step(*examples(3, 0, CONFIG, 10))
    assert said(caplog) == [(logging.INFO, "2 x 5"), (logging.WARNING, "3 x 8"), (logging.WARNING, "3 x 10")]


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Returns the level and the shape of each logged compilation."""
    return [(r.levelno, r.getMessage().removeprefix("compiling for ").split(" tokens")[0]) for r in caplog.records]


@pytest.mark.slow
def test_a_shape_beyond_the_device_gives_way_to_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a step is refused because the largest batch and the largest context so far do not fit together."""
    with trainer(batch=None, context=None) as t:
        monkeypatch.setattr(t.device, "limits", replace(t.device.limits, max_texture_size=320))
        t.step(*examples(60, 0, CONFIG, 4))
        t.step(*examples(2, 0, CONFIG, 9))
        assert (t.recipe.batch, t.recipe.context) == (2, 9)
        with pytest.raises(GlgptError, match="a batch of 70 x 5 tokens is beyond the 320"):
            t.step(*examples(70, 0, CONFIG, 5))
        assert np.isfinite(t.step(*examples(60, 0, CONFIG, 4)))
