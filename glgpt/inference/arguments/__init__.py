"""Checks the arguments that callers pass to a model: types, ranges, loading options and names of activations.

`checks` has the basic checks, `loading` checks the arguments of `glgpt.load`, `names` selects activations, and
`sampling_options` has the settings of `LanguageModel.generate`. All checks are done before work begins; they need
neither a device nor a recorded program.
"""
