"""Scores a model on held-back text, which is text that was not used for training.

For comparison, `suite.score` also scores chance (all tokens are equally likely), n-gram models, and the embedded model
(the small model that is part of glgpt). It also generates a text with the model, and measures how much of this text is
copied from the training text. The package uses `inference` for predictions, and `text` to split a text into tokens and
windows (runs of tokens that are scored together).
"""
