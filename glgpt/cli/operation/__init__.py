"""Options in a file, logs and metrics for those who operate a server. It never knows what a server does."""
