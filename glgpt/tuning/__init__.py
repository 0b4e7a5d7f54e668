"""Which kernel and which texel fetch a device likes best: measured once a driver, and remembered."""
