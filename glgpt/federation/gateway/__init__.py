"""The gateway serves the clients' WebSockets, the host's REST calls, the dashboard and the exported page.

Run as `python -m glgpt.federation.gateway RUN ADDRESS …` by `glgpt federate serve`. It is one site of Flower's
Fleet: however many clients it has, it pulls each round once and answers it once. `service` runs the rounds, `sockets`
speaks the protocol with members, `routes` has the HTTP calls, and `connection` the state of one socket.
"""
