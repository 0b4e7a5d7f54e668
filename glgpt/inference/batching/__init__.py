"""Generates several texts side by side: `batch` runs the steps, and `continuations` schedules the prompts.

A step decodes one token of each text. The package depends on the decoder and the sampler of `inference`;
`model.generate_batch` uses it.
"""
