"""Benchmarks of a device and the engine: measures the device's peaks and reports other rates as shares of them.

The entry points are `run_bench` (inference) and `run_bench_train` (training). Depends on `glgpt.inference`,
`glgpt.training` and `glgpt.tuning`.
"""
