"""Looking into a model and judging it: dumps (attention patterns and other activations as PNG), comparison with
references, evaluation, what a device would need.

It knows `LanguageModel` and files of results; it never knows training. `plots` draws the pictures.
"""
