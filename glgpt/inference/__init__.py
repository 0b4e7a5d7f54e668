"""Runs a loaded model: prefill and decode with a KV cache, sampling, activations, interventions.

`model` has the public class `LanguageModel`, `loading` has `load`, which also loads models split over servers, and
`decoder` fills the KV cache. The package reads checkpoints through `checkpoint` and draws through `gl`; the command
line uses the package.
"""
