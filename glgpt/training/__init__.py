"""Trains a model: `trainer.Trainer` takes single steps, and `run.train` runs a whole training in a run folder.

`program` records a step: gradients, then AdamW's passes (`ops/adamw.py`). The package builds on `inference`, `models`
and `text`; `cli` and `federation` call it.
"""
