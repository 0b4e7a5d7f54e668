"""Runs a split model: its parts run as stages on this machine and on servers, and all of them generate text together.

`model.SplitLanguageModel` is the model that `inference.loading.load` returns for `rest` or `plan`; `stage` and
`batched_stage` are also used by the servers in `glgpt.split`. The package depends on `models` and `wire`.
"""
