"""Handles text and token ids: tokenizers and their training, text files of any size, and datasets of token ids on disk.

`tokenizer.load_tokenizer` and `files.Text` are the main entry points. The package depends on `gguf` and `system`, not
on models or the GPU.
"""
