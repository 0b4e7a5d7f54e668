"""Defines options for operators of servers: a configuration file, logs and metrics.

In `options`, `add_server_options` adds the options to a command, and `operated` applies them to this process.
`glgpt federate serve` does not call `operated`: it passes the options to the processes that it starts.
"""
