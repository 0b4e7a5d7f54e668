"""Helpers that tests of several folders share: references in float64, small trainers and servers, and processes."""
