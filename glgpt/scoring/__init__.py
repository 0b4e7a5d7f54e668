"""How good a model is on held-back text, beside chance, n-gram models and the embedded model; what its samples copy.

It knows losses and token counts; it never knows devices or the command line.
"""
