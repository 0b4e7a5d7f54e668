"""The self-test of a device: every op against recorded reference values."""
