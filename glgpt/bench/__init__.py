"""Measuring a device and the engine on it: peaks first, then everything as a share of them.

It knows how to time passes and whole models; it never knows what a model computes.
"""
