"""Draws pictures with matplotlib: heat maps with token labels, such as attention patterns, and loss curves.

The entry points are in `activations`, `loss` and `strip` (the preview of a page). They take arrays and labels and do
not depend on models.
"""
