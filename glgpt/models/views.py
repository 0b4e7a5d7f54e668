"""Describes a model for views: the stages of a block, and names, groups and explanations for a page's manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from glgpt.models.activations import ACT, EMBED, RESID_POST, SCORES, in_block, part_of
from glgpt.models.part import Part
from glgpt.models.spec import ModelConfig

BLOCK = in_block("{}", "")  # prefix of the names of a block's activations


class Stage(NamedTuple):
    """A cell of the model diagram: the activations that it shows, and the part that adds it to the residual stream."""

    title: str
    names: list[str]
    adds: str | None = None


def stages(config: ModelConfig, block: int) -> list[Stage]:
    """Returns the cells of a block from top to bottom, as the page shows them."""
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


def family_json(config: ModelConfig, states: Sequence[str] = ()) -> dict[str, Any]:
    """Returns names, groups and explanations for a manifest; {} in a name stands for a block's number.

    `states` are the prefixes of states that belong to an activation. `names` is in the order in which a view lists
    them: activations as computed, parameters as used, then others.
    """
    activations = [a.name if a.layer is None else BLOCK + part_of(a.name) for a in config.activations.values()]
    words = config.names
    order = dict.fromkeys([*activations, *map(config.template, config.parameters.values()), *words])
    added = [part_of(a.name) for a in config.activations.values() if a.added and a.layer == 0]
    return {
        "blocks": list(dict.fromkeys([BLOCK, config.block_prefix, *(state + BLOCK for state in states)])),
        "positions": config.positions,
        "stream": [EMBED, BLOCK + RESID_POST],
        "adds": [{"part": out.removesuffix(".out"), "out": out} for out in added],
        "stages": [
            {"title": s.title, "shows": [part_of(n) for n in s.names], "adds": s.adds} for s in stages(config, 0)
        ],
        "names": [
            {"name": name} | {key: text for key, text in words[name]._asdict().items() if text}
            for name in order
            if name in words
        ],
    }


def described(config: ModelConfig, part: Part | None = None) -> list[dict[str, Any]]:
    """Returns the activations of a model, or of a part of it, in order of computation."""
    found = config.activations if part is None else part.activations(config)
    return [{"name": a.name, "kind": a.kind, "heads": a.heads, "width": a.width} for a in found.values()]
