"""Combines the updates of a round into new parameters.

`strategies.STRATEGIES` lists the ways to combine them; the command line, the ServerApp and the dashboard read it.
`updates` converts Flower's messages. The package depends on `federation.protocol` and on Flower.
"""
