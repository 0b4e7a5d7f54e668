"""The mixes of types that model files have, and the formats of textures that hold each of them unchanged.

`llama-quantize` gives a file one type by name, such as Q4_K_M, and stores some tensors in others. `RECIPES` lists the
usual ones. A recorded program fits every file whose tensors its formats hold (`HOLDS`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from glgpt.checkpoint.stored_weights import FORMAT_OF
from glgpt.models.parameters import Parameter
from glgpt.models.spec import ModelConfig
from glgpt.page.player.expected import gguf_about
from glgpt.page.player.shapes import Shape
from glgpt.program.weight_formats import StoredFormats, WeightFormats

SUPER_BLOCK = 256  # values of a block of the K types; tensors whose rows are not multiples have FALLBACK's types
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
PLAIN = {"F32": "f32", "F16": "f16"}
# Format -> the types of GGUF that it holds without a change of any value. f32 and f16 hold plain numbers only.
HOLDS = {
    "f32": ("F32", "F16", "BF16"),
    "f16": ("F16",),
    "q8": ("Q8_0", "Q5_0", "Q4_0"),
    "q4": ("Q4_1", "Q4_0"),
    "q5_1": ("Q5_1", "Q4_1", "Q4_0"),
    "q4_k": ("Q4_K", "Q4_1", "Q4_0"),
    "q5_k": ("Q5_K", "Q4_K", "Q5_1", "Q4_1", "Q4_0"),
    "q6_k": ("Q6_K", "Q8_0", "Q5_0", "Q4_0"),
}


@dataclass(frozen=True)
class Recipe:
    """The types of a file: of most tensors, of the head, and of some by their role, layer and number of layers."""

    name: str
    main: str
    head: str
    special: Callable[[str, int, int], str | None] = lambda role, layer, layers: None


@dataclass(frozen=True)
class Mix:
    """A mix that a shape has programs for, by the name of its recipe."""

    name: str
    formats: WeightFormats


def _more_bits(layer: int, layers: int) -> bool:
    """True for the layers to which llama-quantize's medium mixes give more bits: the outer ones and a third of all."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _medium(packed: str) -> Callable[[str, int, int], str | None]:
    def of(role: str, layer: int, layers: int) -> str | None:
        if role == "qkv":
            return packed
        return "Q6_K" if role in ("v", "down") and _more_bits(layer, layers) else None

    return of


RECIPES = (
    Recipe("F32", "F32", "F32"),
    Recipe("F16", "F16", "F16"),
    Recipe("Q8_0", "Q8_0", "Q8_0"),
    Recipe("Q4_0", "Q4_0", "Q6_K"),
    Recipe("Q4_1", "Q4_1", "Q8_0", lambda role, layer, layers: "Q8_0" if role in ("v", "down") else None),
    Recipe("Q4_K_M", "Q4_K", "Q6_K", _medium("Q5_K")),
    Recipe("Q5_K_M", "Q5_K", "Q6_K", _medium("Q6_K")),
    Recipe("Q6_K", "Q6_K", "Q6_K"),
)


def mixes(shape: Shape) -> list[Mix]:
    """Returns the mixes of a shape, each once: that of its file, and recipes, plain ones if GGUF lacks the model."""
    given = [Mix("file", shape.formats)] if shape.formats else []
    found: dict[object, Mix] = {}
    known = gguf_about(shape.config) is not None
    recipes = [recipe for recipe in RECIPES if recipe.main in PLAIN or known]
    for mix in given + [Mix(recipe.name, _formats(shape.config, recipe)) for recipe in recipes]:
        found.setdefault(mix.formats if isinstance(mix.formats, str) else mix.formats.formats, mix)
    return list(found.values())


def _formats(config: ModelConfig, recipe: Recipe) -> WeightFormats:
    if recipe.main in PLAIN:
        return PLAIN[recipe.main]
    formats, roles = {}, _roles(config)
    for name, parameter in config.parameters.items():
        kind = _type(parameter, roles.get(name, ("", 0)), config, recipe)
        formats[name] = FORMAT_OF.get(kind, "f32")
    return StoredFormats(tuple(formats.items()), (recipe.name,), "f16")


def _type(parameter: Parameter, place: tuple[str, int], config: ModelConfig, recipe: Recipe) -> str:
    """Returns the type in which a file of this recipe stores a tensor."""
    if not parameter.product:
        return "F32"
    special = recipe.head if parameter.name == config.output else recipe.special(*place, config.n_layer)
    kind = special or recipe.main
    width = parameter.unpadded[0]
    return kind if width % SUPER_BLOCK == 0 else FALLBACK.get(kind, kind)


def _roles(config: ModelConfig) -> dict[str, tuple[str, int]]:
    """Returns the role and the layer of each weight of a block, by name."""
    return {
        f"{config.tensor(role, i)}.weight": (role, i)
        for role in config.tensors
        for i in range(config.n_layer)
        if "{}" in config.tensors[role]
    }
