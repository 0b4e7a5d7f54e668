"""Defines options for operators of servers: a configuration file, logs and metrics.

`add_server_options` adds the options to a command, and `operated` applies them. They work for any server command.
"""
