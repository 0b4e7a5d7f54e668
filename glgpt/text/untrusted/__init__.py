"""Reads tokenizer.json and chat templates, which are untrusted, with limits on size, time and memory.

`checked_document` and `load_chat` are the entry points. The package depends on `text`, `gguf` and `system` only.
"""
