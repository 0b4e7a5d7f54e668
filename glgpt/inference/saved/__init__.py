"""Saves the KV caches of a chat's prompt to a file, and reads them again.

The package depends on `glgpt.checkpoint` (safetensors), `glgpt.gl` and the names of activations.
"""
