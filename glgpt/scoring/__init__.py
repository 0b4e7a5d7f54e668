"""Scores a model on held-back text, compared with chance, n-gram models and the embedded model.

`suite.score` is the entry point; it also measures what the model's samples copy from the training text. The package
uses `inference` for predictions, and `text` for tokens and windows.
"""
