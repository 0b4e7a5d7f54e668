"""What an operator of a session has: logs that cannot fill a disk, metrics, undoing rounds.

It never knows sockets or Flower.
"""
