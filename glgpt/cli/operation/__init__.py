"""What servers have for operators: options in a file, logs, metrics. It never knows what a server does."""
