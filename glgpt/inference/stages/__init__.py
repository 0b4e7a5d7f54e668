"""A model in several parts, some here and some on servers: one stage each, and what plays a text through them.

It knows parts of a model and `wire`; it never knows sessions of a server, which are in `split`.
"""
