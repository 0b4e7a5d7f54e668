"""Serves WebSockets for clients, a REST API for clients and the host, the dashboard, and the exported page.

`glgpt federate serve` runs the gateway as `python -m glgpt.federation.gateway RUN …`. To Flower, a gateway with all its
clients is a single node, called a site, which pulls and answers each round once. `service` runs the rounds, `sockets`
exchanges messages with members, `routes` answers HTTP calls, and `connection` holds the state of one socket.
"""
