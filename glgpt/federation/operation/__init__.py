"""Provides tools for operators of sessions: `logs` limits logs, `metrics` exports metrics, `rollback` undoes rounds."""
