"""Trains one model on many devices, in rounds that end by combining the devices' updates; all rounds form a session.

The entry points are `serve` (runs a session), `gateway` (serves its clients) and `member.join` (joins as a client). The
package uses Flower through `flower`, and takes training steps with `training`.
"""
