"""A member of a session: what it computes in a round, and how it takes part: over a socket, or as a node of Flower's.

`worker` computes, `join` is the socket's client, `supernode` is Flower's ClientApp. It never knows how rounds are run
or updates combined.
"""
