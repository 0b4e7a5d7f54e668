"""Exports a page without weights: visitors open model files, and the page has programs for common sizes of models."""
