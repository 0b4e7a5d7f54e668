"""Generates several texts side by side: `batch` runs the steps, and `continuations` schedules the prompts.

A step decodes one token of each text, or checks several guessed tokens of one text. `lookup` decides how many tokens to
guess. The package depends on the decoder and the sampler of `inference`, and on `inference.stages.drafts`, which
guesses the tokens; `LanguageModel.generate_batch` uses the package.
"""
