"""Exports a model as a static web page, and serves it.

`export` writes the page's programs, weights and manifest; `serve` serves such a folder over HTTP. The programs
are recorded with the packages `inference`, `models`, `program` and `training`. The page's own code is in `viewer/src`.
"""
