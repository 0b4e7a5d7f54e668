"""What the sides of a split model say to each other: messages, hidden states in bytes, a connection to a server.

It knows bytes and sockets; it never knows models or devices.
"""
