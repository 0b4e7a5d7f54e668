"""A model that reads and writes: programs of a checkpoint, prefill and decode with a KV cache, sampling, activations.

`model` is the public class; `decoder` fills the KV cache, whose textures `models/network.py` records. It knows no file
format but the checkpoint's and never the command line.
"""
