"""Finds and reads checkpoints: local folders, the Hugging Face Hub, safetensors and PyTorch files.

`Checkpoint.open` is the entry point; `Checkpoint.read` returns one tensor at a time as a NumPy array. The pickles of
PyTorch files are parsed and never executed. The package depends on `models` for the names and shapes of tensors, and on
`errors`, `gguf`, `program`, `text` and `system`. It does not need a GPU.
"""
