"""What a recorded program is: tensors and where they lie in textures, passes, recording, the tape. Plain data, no GL.

`spec` is the program itself and its check, `layout` how a matrix lies in texels, `recorder` collects passes, `shader`
writes the lines between a shader and its tensors, `tape` walks ops backwards. It knows no op and no model.
"""
