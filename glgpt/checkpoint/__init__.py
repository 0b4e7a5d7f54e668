"""Checkpoint files: folders, the Hub, safetensors and PyTorch's pickles, read without running them.

It knows files and tensors by name; it never knows devices or text.
"""
