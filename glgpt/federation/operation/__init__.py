"""Tools for a session's operator: `logs` throttles logs, `metrics` exports metrics, `rollback` undoes rounds.

They use the session's files, `glgpt.system` and prometheus_client.
"""
