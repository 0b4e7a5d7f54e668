"""Serves a model over HTTP with OpenAI's API: chat and text completions, streaming, structured output.

`engine` owns the model and its thread and continues up to eight texts at once; `requests` checks what clients send,
`tools` describes functions, `choices` collects the text of an answer, `calls` finds calls of functions in it, `answers`
writes it as JSON; `routes` and `server` are the HTTP side, with `access` for keys and origins. Depends on
`glgpt.inference` and the limits of `glgpt.page`'s server.
"""
