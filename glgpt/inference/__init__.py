"""A model that reads and writes: programs of a checkpoint, prefill and decode with a KV cache, sampling, activations.

`model` is the public class. It knows no file format but the checkpoint's and nothing of the command line.
"""
