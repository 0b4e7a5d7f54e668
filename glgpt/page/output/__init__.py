"""Writes the files of an exported page and puts them in place.

`files` writes weights, tokenizer and reference run; `preview` and `selftest` write the link preview and the self-test.
`schemas` checks documents, `single_file` makes one HTML file, and `destination` replaces an earlier export.
"""
