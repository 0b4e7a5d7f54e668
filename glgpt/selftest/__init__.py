"""Tests a device: draws every op and compares its results with recorded reference values.

`report.run` is the entry point; `suite` reads the recorded cases, `draw` draws them, and `speed` measures the device.
"""
