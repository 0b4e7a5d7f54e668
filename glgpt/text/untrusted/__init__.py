"""Documents of strangers that say how text becomes ids: tokenizer.json and chat templates, read within bounds.

It knows which parts are supported; it never knows models or GL.
"""
