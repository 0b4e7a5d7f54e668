"""Combines the updates of a round into new parameters.

`strategies.STRATEGIES` lists the ways to combine updates; `updates` puts updates into Flower's messages. The package
depends on `federation.protocol`, `federation.rules` and Flower.
"""
