"""OpenGL: contexts and their limits, playing a program, reading textures back. Knows no op and no model."""
