"""Exports a page without weights: it has programs for common architectures and sizes, for files that visitors open."""
