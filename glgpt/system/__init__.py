"""What the operating system gives: package data, caches, writing whole files, signals.

It never knows models or GL.
"""
