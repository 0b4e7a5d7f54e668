"""Reads and writes GGUF files, the format of llama.cpp: metadata, tensors in blocks of quantised values, tokenizers.

`reader.open_gguf` locates the tensors of a file, and `model_files` presents a GGUF file as a Hugging Face folder.
The package depends on `errors` and `system` only, not on models, tokenizers or the GPU.
"""
