"""Tools for a session's operator: `logs` throttles logs, `metrics` exports metrics, `rollback` undoes rounds."""
