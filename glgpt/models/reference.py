"""Collects the activations of a transformers model by hooks on its modules, which each family names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from glgpt.models.spec import LOGITS, PATTERN, SCORES, K, Q, in_block


class Hooks:
    """Forward hooks that record inputs and outputs of modules, by activation name."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._handles: list[Any] = []

    def output(self, name: str, module: Any, change: Callable[[Any], Any] = lambda x: x) -> None:
        """Records what a module returns for the first sequence, after `change`."""

        def hook(_: Any, __: Any, output: Any) -> None:
            self.found[name] = change((output[0] if isinstance(output, tuple) else output)[0])

        self._handles.append(module.register_forward_hook(hook))

    def input(self, name: str, module: Any) -> None:
        """Records the input of a module."""

        def hook(_: Any, inputs: Any, __: Any) -> None:
            self.found[name] = inputs[0][0]

        self._handles.append(module.register_forward_hook(hook))

    def run(
        self,
        network: Any,
        ids: list[int],
        scales: Sequence[float],
        change: Callable[[dict[str, Any]], dict[str, Any]] = lambda found: found,
    ) -> dict[str, Any]:
        """Runs `ids` once; returns all recorded values after `change`, logits, patterns and scores.

        `scales` are the factors of each layer's scores.
        """
        import torch

        with torch.no_grad():
            output = network(torch.tensor([ids]), output_attentions=True, use_cache=False)
        for handle in self._handles:
            handle.remove()
        found = change(self.found) | {LOGITS: output.logits[0]}
        future = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
        for i, pattern in enumerate(output.attentions):
            q, k = found[in_block(i, Q)], found[in_block(i, K)]
            scores = q @ k.repeat_interleave(len(q) // len(k), 0).transpose(1, 2) * scales[i]
            found |= {in_block(i, PATTERN): pattern[0], in_block(i, SCORES): scores.masked_fill(future, -torch.inf)}
        return {name: value.double().numpy() for name, value in found.items()}
