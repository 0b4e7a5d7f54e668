"""Functions around the operating system: package data, safe reading and atomic writing of files, logs, signals.

It depends on no other package of glgpt except `errors`.
"""
