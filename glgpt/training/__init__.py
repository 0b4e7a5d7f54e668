"""Training a model: the step's program with AdamW, `Trainer` for one step, `run` for a whole run in its folder."""
