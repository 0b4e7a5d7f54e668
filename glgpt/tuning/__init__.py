"""Chooses the fastest matrix kernel and texel fetch for a device, by a probe that is run once per driver and cached.

The entry points are `DeviceSettings` and `choose`. Depends on `glgpt.ops` and `glgpt.gl`, not on models.
"""
