"""Runs a split model: its parts as stages on this machine and on servers, and generation through all of them.

`model.SplitLanguageModel` is the model that `inference.loading.load` returns for `rest` or `plan`; `stage` and
`batched_stage` are also used by the servers of `split`. The package depends on `models` and `wire`.
"""
