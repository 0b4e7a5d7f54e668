"""Handles text and token ids: tokenizers and their training, text files of any size, and datasets of token ids on disk.

`load_tokenizer` and `Text` are the main entry points. The package depends on `gguf` and `system`, not on models or the
GPU.
"""
