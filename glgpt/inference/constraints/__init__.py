"""Constrains generated text to a JSON schema, a regular expression or a list of choices.

A caller gives a `Constraint`; `Grammars` and `Matcher` find the tokens that may come next (with `llguidance`);
`MaskedSampling` draws one of these tokens on the device. The package depends on `glgpt.text`, `glgpt.ops` and
`glgpt.gl`, but not on models.
"""
