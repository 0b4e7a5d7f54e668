"""OpenGL: opens devices (`open_device`), plays programs (`Player`) and reads textures back (`Readback`).

Depends on `glgpt.program` and moderngl, not on ops or models.
"""
