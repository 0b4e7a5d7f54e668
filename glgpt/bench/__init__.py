"""Benchmarks a device and the engine: measures the device's peak rates, and reports other rates as shares of these.

Two rates are shares of the rate of separately measured matrix products instead: that of prefill, and that of the
products in a training step. The entry points are `run_bench` (inference) and `run_bench_train` (training). The package
builds on `glgpt.inference`, `glgpt.training` and `glgpt.tuning`.
"""
