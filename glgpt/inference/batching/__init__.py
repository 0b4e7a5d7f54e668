"""Generates several texts side by side: `batch` decodes a step of all of them, `continuations` schedules prompts.

It depends on the decoder and the sampler of `inference`; `model` uses it for `generate_batch`.
"""
