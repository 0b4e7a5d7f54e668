"""Tools for the operator of a session: `logs` throttles logs, `metrics` reports a gateway, `rollback` undoes rounds.

They use the session's files, `glgpt.system` and prometheus_client.
"""
