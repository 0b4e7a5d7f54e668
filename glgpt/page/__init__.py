"""The exported web page: its programs, weights and manifest, and the server that shows it on this machine.

It knows files of the page and their schemas; it never knows WebGL, which is the page's own (`viewer/src`).
"""
