"""Training one model on many devices: a session's rounds, its gateway for browsers, and the client that joins.

It knows Flower (in `flower`), sockets and rules for updates; it never knows shaders: `training` takes the steps.
"""
