"""Benchmarks a device and the engine: measures the device's peak rates, and reports all other rates as shares of these.

The entry points are `run_bench` (inference) and `run_bench_train` (training). The package depends on `glgpt.inference`,
`glgpt.training` and `glgpt.tuning`.
"""
