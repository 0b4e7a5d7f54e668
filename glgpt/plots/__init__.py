"""Figures drawn with matplotlib: attention patterns and other heat maps with token labels (PNG), loss curves.

It knows arrays and labels; it never knows a model.
"""
