"""Text and token ids: tokenizers, training one, text files, datasets of ids kept on disk.

It knows bytes and ids; it never knows models or GL.
"""
