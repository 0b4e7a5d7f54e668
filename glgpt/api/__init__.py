"""Serves a model over HTTP with OpenAI's API: chat and text completions, streaming, structured output.

`engine` owns the model and its thread, and continues up to eight texts at once. `requests` checks requests. `tools`
describes functions to the model. `choices` collects the text of an answer, `calls` finds function calls in the text,
and `answers` writes the answer as JSON. `routes`, `server` and `access` handle HTTP. The package runs the model with
`glgpt.inference`, and uses the HTTP code of `glgpt.page.serve`.
"""
