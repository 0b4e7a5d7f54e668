"""OpenGL: contexts and their limits, playing a program, reading textures back.

It knows programs and textures; it never knows an op or a model.
"""
