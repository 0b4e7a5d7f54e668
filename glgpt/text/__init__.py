"""Text and token ids: tokenizers, training one, text files, datasets of ids kept on disk. Knows no model and no GL."""
