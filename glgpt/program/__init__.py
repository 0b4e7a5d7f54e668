"""What a recorded program is: tensors and their layout in textures, passes, recording, the tape. Plain data, no GL.

`spec` is the program itself and its check, `layout` where a matrix is in a texture, `formats` how numbers are packed in
texels. `recorder` collects passes, `shader` writes the lines between a shader and its tensors, `tape` walks ops
backwards. It never knows an op or a model.
"""
