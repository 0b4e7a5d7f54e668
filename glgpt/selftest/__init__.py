"""Tests a device: draws every op and compares the results with recorded reference values.

`report.run` is the entry point; `suite` reads the recorded cases, `draw` draws them, and `speed` measures the device.
"""
