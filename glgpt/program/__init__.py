"""Records programs as plain data: tensors with their layout in textures, and shader passes that compute tensors.

`spec` defines and checks a `Program`, `layout` places a matrix in a texture, and `formats` packs numbers into texels.
`recorder` collects passes, `shader` generates the GLSL with which a shader accesses its tensors, and `tape` records ops
to differentiate them. The package does not depend on OpenGL, ops or models.
"""
