"""Tests that every name that the page shows has an explanation, and every pass of a block a caption."""

from __future__ import annotations

import pytest

from glgpt.models.families import FAMILIES, config_class
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.models.families.llama import LlamaConfig
from glgpt.models.spec import ModelConfig
from glgpt.models.views import family_json
from glgpt.page.programs import generate_program, page_recordings

SIZE = (64, 32, 16, 12, 2)
CONFIGS = {
    "gpt2": GPT2Config.sized(*SIZE),
    "gpt2-untied": GPT2Config(*SIZE, tie_word_embeddings=False),
    "llama": LlamaConfig.sized(*SIZE),
    "llama-untied": LlamaConfig(*SIZE, n_inner=32, tie_word_embeddings=False),
    **{name: config_class(name).sized(*SIZE) for name in FAMILIES if name not in ("gpt2", "llama")},
}


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_family_explains_its_names(config: ModelConfig) -> None:
    """Fails if an activation, weight or state has no explanation, or one that is true for another family only."""
    family = family_json(config)
    about = {entry["name"]: entry.get("about") for entry in family["names"]}
    program = generate_program(config, page_recordings("f32")[0], "f32")
    kept = [t.name for t in program.textures.values() if t.role in ("weight", "state") and t.name != "token"]
    for name in [*config.activations, *config.parameters, *kept]:
        found = [p for p in family["blocks"] for i in range(12) if name.startswith(p.format(i))]
        block = next((i for i in range(12) if found and name.startswith(found[0].format(i))), None)
        template = name if block is None else name.replace(f".{block}.", ".{}.", 1)
        assert about[template], name
    assert ("position" in about["embed"]) == (family["positions"] == "absolute")
    tied = "also turns" in about[config.embedding]
    assert tied == config.tie_word_embeddings and about[config.head] == "turns the last norm into logits"


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_passes_of_a_block_have_captions(config: ModelConfig) -> None:
    """Fails if a pass of a block lacks the caption that the page shows above a column of pictures."""
    family = family_json(config)
    titles = {entry["name"]: entry.get("title") for entry in family["names"]}
    labels = [p.label for p in generate_program(config, page_recordings("f32")[0], "f32").entries["decode"].passes]
    block = [name for label in labels for name in label.split(", ") if ".11." in name]
    assert len(block) >= 10 and all(titles.get(label.replace(".11.", ".{}.", 1)) for label in block), block


def test_names_are_listed_as_they_are_computed_and_used() -> None:
    names = [entry["name"] for entry in family_json(CONFIGS["llama"])["names"]]
    order = ["embed", "h.{}.ln_1", "h.{}.resid_post", "logits", "embed_tokens.weight"]
    order += ["layers.{}.input_layernorm.weight", "layers.{}.mlp.down_proj.weight", "norm.weight"]
    assert sorted(order, key=names.index) == order and len(set(names)) == len(names)
