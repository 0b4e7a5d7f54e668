"""Scores a model on held-back text, which is text that was not used for training.

For comparison, it also scores chance (all tokens are equally likely), n-gram models, and the embedded model (the small
model that is part of glgpt). `suite.score` is the entry point; it also measures what a sample of the model copies from
the training text. The package uses `inference` for predictions, and `text` to split a text into tokens and windows
(runs of tokens that are scored together).
"""
