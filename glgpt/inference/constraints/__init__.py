"""Constrains generated text to a JSON schema, a regular expression or a list of choices.

`Constraint` is what a caller asks for, `Grammars` and `Matcher` say which tokens may come next (with `llguidance`), and
`MaskedSampling` draws one of these on the device. Depends on `glgpt.text`, `glgpt.ops` and `glgpt.gl`, not on models.
"""
