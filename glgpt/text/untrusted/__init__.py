"""Reads tokenizer.json and chat templates, which are untrusted, with limits on size, time and memory.

`tokenizer_document.checked_document`, `chat_template.ChatTemplate` and `chat.load_chat` are the entry points. The
package depends on `text`, `gguf`, `system` and `errors` only.
"""
