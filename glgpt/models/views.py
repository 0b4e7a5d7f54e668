"""Describes a model for the page that displays it: the stages of a block, names, captions and explanations.

A stage is a cell of a block in the machine view, the diagram of a model that the page draws. A manifest is the JSON
file that describes an exported page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, cast

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from glgpt.models.activations import ACT, EMBED, RESID_POST, SCORES, Kind, Q, in_block, part_of
from glgpt.models.part import Part
from glgpt.models.spec import ModelConfig

BLOCK = in_block("{}", "")  # prefix of the names of a block's activations; {} stands for the block's number
_Name = Annotated[str, Field(min_length=1)]


class ListedActivation(TypedDict):
    """An activation in a manifest; see `glgpt.models.activations.Activation`."""

    name: _Name
    kind: Kind
    heads: Annotated[int, Field(ge=1, le=1 << 10)]
    width: Annotated[int, Field(ge=1, le=1 << 24)]


class AddedPart(TypedDict):
    """A part of a block (attention or MLP), and `out`, the activation that it adds to the residual stream."""

    part: str
    out: str


class ListedStage(TypedDict):
    """A stage in a manifest: `shows` are the activations that the cell shows.

    `adds` is the part of the block (attention or MLP) whose output is added to the residual stream here; None: nothing
    is added.
    """

    title: str
    shows: Annotated[list[str], Field(min_length=1)]
    adds: str | None


class NamedThing(TypedDict):
    """An activation, parameter, state or pass, with its caption `title` and its explanation `about`."""

    name: _Name
    title: NotRequired[str]
    about: NotRequired[str]


class Family(TypedDict):
    """The names that a model family uses, with captions and explanations; {} in a name stands for a block's number."""

    blocks: Annotated[
        list[Annotated[str, Field(pattern="\\{\\}")]],
        Field(min_length=1, description="Prefixes of the names in a block; activations have the first prefix"),
    ]
    positions: Annotated[
        Literal["absolute", "rotary"],
        Field(
            description="absolute: a position's vector is added to the embedding; rotary: queries and keys are rotated"
        ),
    ]
    stream: Annotated[
        list[str],
        Field(
            min_length=2,
            max_length=2,
            description="Names of the residual stream after the embedding and after a block",
        ),
    ]
    queries: Annotated[_Name, Field(description="State with a block's queries; only views of the page read it")]
    adds: Annotated[
        list[AddedPart],
        Field(description="Parts of a block that add to the stream, in order, and the activation that each adds"),
    ]
    stages: Annotated[
        list[ListedStage],
        Field(
            min_length=1,
            description="Cells of a block in the page's drawing of the model, from the top; a cell shows activations",
        ),
    ]
    names: Annotated[
        list[NamedThing],
        Field(
            description="Activations, parameters, states and passes in display order, with a caption and an explanation"
        ),
    ]


class Stage(NamedTuple):
    """A cell of a block in the machine view: `names` are the activations that it shows.

    `adds` is the part of the block (attention or MLP) whose output is added to the residual stream here, if any.
    """

    title: str
    names: list[str]
    adds: str | None = None


def stages(config: ModelConfig, block: int) -> list[Stage]:
    """Returns the stages of a block from top to bottom, as the page shows them."""
    names = [name for name in config.activations if name.startswith(in_block(block, ""))]
    kinds = {kind: [n for n in names if config.activations[n].kind == kind] for kind in ("cache", "heads")}
    added = [name for name in names if config.activations[name].added]
    attention, mlp = (part_of(name).removesuffix(".out") for name in (added[0], added[-1]))
    return [
        Stage("QKV", kinds["cache"]),
        Stage("scores", [in_block(block, SCORES)]),
        Stage("mix", kinds["heads"], attention),
        *([] if config.parallel else [Stage("residual", [names[names.index(added[0]) + 1]])]),
        Stage("MLP", [in_block(block, ACT)], mlp),
        Stage("residual", names[-1:]),
    ]


def family_json(config: ModelConfig, states: Sequence[str] = ()) -> Family:
    """Returns a manifest's field `family` for a model; {} in a name stands for a block's number.

    A state that belongs to an activation has the activation's name after a prefix; `states` lists these prefixes. The
    `names` are in the order in which the page lists them: activations in order of computation, parameters in order of
    use, then other names.
    """
    activations = [a.name if a.layer is None else BLOCK + part_of(a.name) for a in config.activations.values()]
    words = config.names
    order = dict.fromkeys([*activations, *map(config.template, config.parameters.values()), *words])
    added = [part_of(a.name) for a in config.activations.values() if a.added and a.layer == 0]
    return {
        "blocks": list(dict.fromkeys([BLOCK, config.block_prefix, *(state + BLOCK for state in states)])),
        "positions": cast('Literal["absolute", "rotary"]', config.positions),
        "stream": [EMBED, BLOCK + RESID_POST],
        "queries": Q,
        "adds": [{"part": out.removesuffix(".out"), "out": out} for out in added],
        "stages": [
            {"title": s.title, "shows": [part_of(n) for n in s.names], "adds": s.adds} for s in stages(config, 0)
        ],
        "names": [
            cast("NamedThing", {"name": name, **{key: text for key, text in words[name]._asdict().items() if text}})
            for name in order
            if name in words
        ],
    }


def described(config: ModelConfig, part: Part | None = None) -> list[ListedActivation]:
    """Returns the activations of a model, or of a part of it, in order of computation."""
    found = config.activations if part is None else part.activations(config)
    return [{"name": a.name, "kind": a.kind, "heads": a.heads, "width": a.width} for a in found.values()]
