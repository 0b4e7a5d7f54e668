"""Measuring a device and the engine on it: peaks first, then everything as a share of them."""
