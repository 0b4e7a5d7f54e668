"""The exported web page: its programs, weights and manifest, and the server that shows it on this machine."""
