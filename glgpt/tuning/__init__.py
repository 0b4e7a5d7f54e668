"""Which kernel and which texel fetch a device likes best: measured once a driver, and remembered.

It knows timings of probe passes; it never knows models.
"""
