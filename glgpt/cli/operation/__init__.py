"""Options for operators of servers: a configuration file, logs and metrics.

`add_server_options` adds them to a command and `operated` applies them. They work for any server command.
"""
