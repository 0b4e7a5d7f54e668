"""Draws pictures with matplotlib: attention patterns and other heat maps with token labels, loss curves.

The entry points are in `activations`, `loss` and `strip` (the preview of a page). They take arrays and labels and do
not depend on models.
"""
