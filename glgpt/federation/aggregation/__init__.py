"""Combines the updates of a round into new parameters.

`strategies.STRATEGIES` lists the ways to combine updates, and `updates` converts updates to Flower's messages. The
package depends on `federation.protocol`, `federation.rules` and Flower.
"""
