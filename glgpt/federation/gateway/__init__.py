"""The gateway serves the clients' WebSockets, the host's REST calls, the dashboard and the exported page.

`glgpt federate serve` runs it as `python -m glgpt.federation.gateway RUN …`; to Flower it is a single node, called a
site, which pulls and answers each round once for all its clients. `service` runs the rounds, `sockets` exchanges
messages with members, `routes` answers HTTP calls, and `connection` holds the state of one socket.
"""
