"""Figures drawn with matplotlib: heat maps with token labels, loss curves. Knows arrays, no model."""
