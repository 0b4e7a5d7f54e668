"""Generates several texts side by side: `batch` runs the steps, and `continuations` schedules the prompts.

A step decodes one token of each text. `lookup` decides how many tokens to guess. The package depends on the decoder and
the sampler of `inference`; `LanguageModel.generate_batch` uses the package.
"""
