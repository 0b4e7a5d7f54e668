"""Runs a split model: its parts run as stages on this machine and on servers, and together they generate text.

`model.SplitLanguageModel` is the class of the models that `inference.loading.load` returns with the option `rest` or
`plan`. The servers in `glgpt.split` use `stage` and `batched_stage` too. The package depends on `models` and `wire`.
"""
