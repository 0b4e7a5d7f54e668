"""Gives access to the operating system: package data, safe reading and atomic writing of files, logs, signals.

The package depends on no other part of glgpt except `errors`.
"""
