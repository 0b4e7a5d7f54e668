"""Scores a model on held-back text, and for comparison chance, n-gram models and the embedded model.

`suite.score` is the entry point; it also measures what the model's samples copy from the training text. Held-back text
is text that was not used for training. The package uses `inference` for predictions, and `text` to split a text into
tokens and windows (runs of tokens that are scored together).
"""
