"""Runs a loaded model: prefill and decode with a KV cache, sampling, activations, interventions.

`model` has the public class, and `loading` the function that also loads split models; `decoder` fills the KV cache,
whose textures `models/network.py` records. The package reads checkpoints through `checkpoint` and draws through `gl`;
the command line is built on top of it.
"""
