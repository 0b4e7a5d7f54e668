"""Recorded programs as plain data: tensors and their layout in textures, shader passes, recording and the tape.

`spec` defines and checks a `Program`, `layout` places a matrix in a texture, and `formats` packs numbers into texels.
`recorder` collects passes, `shader` generates the GLSL with which a shader accesses its tensors, and `tape` records the
gradients of ops. The package does not depend on OpenGL, ops or models.
"""
