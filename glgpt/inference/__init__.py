"""Runs a loaded model: prefill and decode with a KV cache, sampling, activations, interventions.

`model` has the public class `LanguageModel`, `loading` has `load`, which also loads models split over servers, and
`decoder` generates tokens with the KV cache. The package reads checkpoints with `glgpt.checkpoint` and runs passes with
`glgpt.gl`; the command line uses the package.
"""
