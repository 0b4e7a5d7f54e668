"""Lists the usual mixes of GGUF's tensor types, and the types that each storage format holds unchanged.

A mix, such as Q4_K_M, defines the type of each tensor of a file; `llama-quantize` names its files after their mixes.
A program is recorded for a shape (an architecture with its sizes) and one mix. The program fits every file of the
shape whose tensors have types that the program's storage formats hold (`HOLDS`).
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

# Values in a block of the K types. `FALLBACK`: the type to use instead if a tensor's rows are not whole blocks.
SUPER_BLOCK = 256
FALLBACK = {"Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
PLAIN = {"F32": "f32", "F16": "f16"}
# Storage format -> the types of GGUF whose values it holds unchanged.
HOLDS = {
    "f32": ("F32", "F16", "BF16", *FORMAT_OF),
    "f16": ("F16",),
    "q8": ("Q8_0", "Q5_0", "Q4_0", "IQ4_NL"),
    "q4": ("Q4_1", "Q4_0"),
    "q5_1": ("Q5_1", "Q4_1", "Q4_0"),
    "q4_k": ("Q4_K", "Q4_1", "Q4_0"),
    "q5_k": ("Q5_K", "Q4_K", "Q5_1", "Q4_1", "Q4_0"),
    "q2_k": tuple(FORMAT_OF),
    "q6_k": ("Q6_K", "Q3_K", "IQ4_XS", "IQ4_NL", "Q8_0", "Q5_0", "Q4_0"),
}


@dataclass(frozen=True)
class Recipe:
    """The types of a mix: `main` is that of most tensors, and `head` is that of the output head.

    `special` takes a tensor's role, its layer and the number of layers, and returns the tensor's type (None: `main`).
    The recipe "any" is for files of all other mixes: the storage format of its type holds the values of every type.
    """

    name: str
    main: str
    head: str
    special: Callable[[str, int, int], str | None] = lambda role, layer, layers: None


@dataclass(frozen=True)
class Mix:
    """A mix for which a shape has programs. `name` is that of its recipe, or "file" for the mix of a given file."""

    name: str
    formats: WeightFormats


def _more_bits(layer: int, layers: int) -> bool:
    """True for the layers to which llama-quantize's medium mixes give more bits.

    These are the first and the last eighth of the layers, and every third layer between them.
    """
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
    Recipe("any", "Q2_K", "Q2_K"),
)


def mixes(shape: Shape) -> list[Mix]:
    """Returns the different mixes of a shape: that of the shape's GGUF file, if any, then those of `RECIPES`.

    If GGUF has no architecture for the shape, returns only F32 and F16 of `RECIPES`.
    """
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
    """Returns (role, layer) of each weight in a block, by the weight's name; a role is, for example, "down"."""
    return {
        f"{config.tensor(role, i)}.weight": (role, i)
        for role in config.tensors
        for i in range(config.n_layer)
        if "{}" in config.tensors[role]
    }
