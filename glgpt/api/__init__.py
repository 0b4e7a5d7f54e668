"""Serves a model over HTTP with OpenAI's API: chat and text completions, streaming, structured output.

`engine` owns the model and its thread, and continues up to eight texts at once; `requests` checks requests, `tools`
describes functions, `choices` and `calls` collect the text and the calls of an answer, `answers` writes them as JSON,
and `routes`, `server` and `access` handle HTTP. The package runs the model with `glgpt.inference`, and uses the HTTP
code of `glgpt.page.serve`.
"""
