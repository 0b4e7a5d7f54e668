"""Reads tokenizer.json and chat templates, which are untrusted, with limits on size, time and memory.

`read_document` and `load_chat` are the entry points. The package depends on `text` and `system` only.
"""
