"""Collects the activations of a model in transformers, with which those of glgpt are compared.

Hooks record the inputs and outputs of modules of transformers. A role (a key of `ModelConfig.tensors`) identifies a
module, since a module is named like its tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from glgpt.models.activations import (
    ACT,
    ATTN_OUT,
    EMBED,
    FINAL_NORM,
    FIRST_NORM,
    GATE,
    HIDDEN_OUT,
    LOGITS,
    MLP_OUT,
    PATTERN,
    PRE,
    PROJECTED,
    RESID_MID,
    RESID_POST,
    SCORES,
    SECOND_NORM,
    UP,
    K,
    Q,
    V,
    Z,
    in_block,
)
from glgpt.models.mlp import inputs

if TYPE_CHECKING:
    from glgpt.models.spec import ModelConfig


def activations(config: ModelConfig, network: Any, ids: list[int]) -> dict[str, Any]:
    """Runs the transformers model `network` on `ids`; returns every activation by name, as float64 in natural shapes.

    The model must use eager attention. Queries and keys are those that attention receives, after normalisation and
    rotation.
    """
    import torch

    hooks = Hooks(config, network)
    hooks.input(EMBED, "block", 0)
    hooks.output(FINAL_NORM, "norm")
    for i in range(config.n_layer):
        hooks.block(i)
    with _attention(network) as calls, torch.no_grad():
        output = network(torch.tensor([ids]), use_cache=False)
    hooks.remove()
    found = hooks.found | {LOGITS: output.logits[0]}
    for i, (q, k, v, pattern) in enumerate(calls):
        found |= {in_block(i, Q): q, in_block(i, K): k, in_block(i, V): v, in_block(i, PATTERN): pattern}
        found[in_block(i, SCORES)] = _scores(config, i, q, k)
        if config.gated:
            found[in_block(i, GATE)] = hooks.act(found[in_block(i, PRE)])
    return {name: value.double().numpy() for name, value in found.items()}


def _scores(config: ModelConfig, layer: int, q: Any, k: Any) -> Any:
    """Returns the scores of queries and keys `[heads, T, d]`, with -inf for keys to which a token does not attend."""
    import torch

    cap, window = config.attn_softcap, config.window_of(layer)
    scores = q.double() @ k.double().repeat_interleave(len(q) // len(k), 0).transpose(1, 2) * config.scale(layer)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    past = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
    return scores.masked_fill((past < 0) | (past >= window if window else False), -torch.inf)


class Hooks:
    """Forward hooks that record inputs and outputs of modules for the first sequence.

    `found` holds the recorded activations by name.
    """

    def __init__(self, config: ModelConfig, network: Any) -> None:
        self.config, self.network = config, network
        self.found: dict[str, Any] = {}
        self._handles: list[Any] = []

    def block(self, i: int) -> None:
        """Adds hooks that record the activations of block i, except q, k, v, scores, pattern and gate."""
        c = self.config
        first = inputs(c)[0]
        if c.norm_before:
            self.output(in_block(i, FIRST_NORM), "norm_1", i)
            self.output(in_block(i, SECOND_NORM), "norm_2", i)
        self.input(in_block(i, Z), "o", i)
        for out, projected, role, norm in (
            (ATTN_OUT, PROJECTED, "o", "post_1"),
            (MLP_OUT, HIDDEN_OUT, "down", "post_2"),
        ):
            self.output(in_block(i, projected if c.norm_after else out), role, i)
            if c.norm_after:
                self.output(in_block(i, out), norm, i)
        if not c.parallel:
            self.input(in_block(i, RESID_MID), "norm_2" if c.norm_before else first, i)
        self.output(in_block(i, PRE), first, i)
        if self.config.gated:
            self.output(in_block(i, UP), "up", i)
        self.input(in_block(i, ACT), "down", i)
        self.output(in_block(i, RESID_POST), "block", i)

    def output(self, name: str, role: str, layer: int = 0) -> None:
        """Adds a hook that records the output of the module of a role, as activation `name`."""

        module, columns = self._module(role, layer)

        def hook(_: Any, __: Any, output: Any) -> None:
            self.found[name] = (output[0] if isinstance(output, tuple) else output)[0][..., columns]

        self._handles.append(module.register_forward_hook(hook))

    def input(self, name: str, role: str, layer: int = 0) -> None:
        """Adds a hook that records the input of the module of a role, as activation `name`."""

        def hook(_: Any, inputs: Any, __: Any) -> None:
            self.found[name] = inputs[0][0]

        self._handles.append(self._module(role, layer)[0].register_forward_hook(hook))

    def _module(self, role: str, layer: int) -> tuple[Any, slice]:
        """Returns the module of a role, and the columns of its output that belong to this role.

        If the module computes several roles (`ModelConfig.fused`), other columns belong to the other roles.
        """
        name, columns = self.config.tensor(role, layer), slice(None)
        if any(role in roles for roles in self.config.fused.values()):
            tensor, columns = self.config.file_place(f"{name}.weight")
            name = tensor.name.removesuffix(".weight")
        return self.network.get_submodule(self.config.prefix + name), columns

    def act(self, x: Any) -> Any:
        """Applies the activation function of transformers' MLP to x."""
        from transformers.activations import ACT2FN

        return ACT2FN[self.config.activation_function](x)

    def remove(self) -> None:
        """Removes all hooks."""
        for handle in self._handles:
            handle.remove()


@contextmanager
def _attention(network: Any) -> Iterator[list[tuple[Any, ...]]]:
    """Yields a list to which every call of eager attention appends its queries, keys, values and pattern."""
    modeling, calls = sys.modules[type(network).__module__], list[tuple[Any, ...]]()

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, query: Any, key: Any, value: Any, *more: Any, **options: Any) -> Any:
            found = original(module, query, key, value, *more, **options)
            calls.append((query[0], key[0], value[0], found[1][0]))
            return found

        return call

    owner: Any = modeling
    name = "eager_attention_forward"
    if not hasattr(modeling, name):  # older models: attention modules have the method `_attn` instead
        owner, name = next(type(module) for module in network.modules() if hasattr(module, "_attn")), "_attn"
    from unittest.mock import patch  # imported here, since the import takes a tenth of the start-up time of a command

    with patch.object(owner, name, recording(getattr(owner, name))):
        yield calls
