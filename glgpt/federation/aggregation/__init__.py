"""Combines the updates of a round into new parameters.

`strategies.STRATEGIES` lists the ways to combine updates; the command line, the ServerApp and the dashboard read it.
`updates` puts updates into Flower's messages. The package depends on `federation.protocol`, `federation.rules` and
Flower.
"""
