"""Finds and reads checkpoints: local folders, the Hugging Face Hub, safetensors and PyTorch files.

`Checkpoint.open` is the entry point; it reads tensors one at a time as NumPy arrays. Pickles are parsed and never
executed. The package depends on `models` for names and shapes, on `gguf`, `text` and `system`, and not on the GPU.
"""
