"""Training a model: the step's program, `Trainer` for one step, `run` for a whole run in its folder.

AdamW's passes are in `ops/adamw.py`; `program` records them behind the gradients. It never knows the command line.
"""
