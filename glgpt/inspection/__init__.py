"""Looking into a model and judging it: comparison with references, dumps, evaluation, what a device would need."""
