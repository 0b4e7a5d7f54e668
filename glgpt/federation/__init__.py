"""Training one model on many devices: a session's rounds, its gateway for browsers, and the client that joins."""
