"""Constrains generated text to a JSON schema, a regular expression or a list of choices.

A caller gives a `constraint.Constraint`; `matcher.Grammars` and `matcher.Matcher` find the tokens that may come next
(with the library `llguidance`); `masking.MaskedSampling` draws one of these tokens on the device. The package depends
on `glgpt.text`, `glgpt.ops` and `glgpt.gl`, but not on models.
"""
