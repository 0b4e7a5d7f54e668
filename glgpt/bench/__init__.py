"""Benchmarks a device and the engine: measures the device's peak rates, and compares the engine's rates with them.

The rates of prefill and of the matrix products in a training step are compared with those of single matrix products
instead. The entry points are `run_bench` (inference) and `run_bench_train` (training). The package builds on
`glgpt.inference`, `glgpt.training` and `glgpt.tuning`.
"""
