"""Chooses the fastest kernel of matrix products and the fastest texel fetch for a device.

A probe measures them once per driver and caches the results. The entry points are `DeviceSettings` and `choose`. The
package depends on `glgpt.ops` and `glgpt.gl`, not on models.
"""
