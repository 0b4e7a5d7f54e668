"""Holds the shared code of `glgpt federate`: a check of its packages, output of events, requests to a gateway."""

from __future__ import annotations

import argparse
import importlib.util
import json
import ssl
import sys
from typing import Any

from glgpt.errors import GlgptError

PACKAGES = ("flwr", "websockets", "httpx")  # packages that `glgpt[federate]` installs


def check_extra() -> None:
    """Raises GlgptError if Python is older than 3.11 or a package that `glgpt[federate]` installs is missing."""
    if sys.version_info < (3, 11):
        raise GlgptError("glgpt federate needs Python 3.11 or newer, as Flower does")
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        raise GlgptError('glgpt federate needs Flower: pip install "glgpt[federate]"')


def print_event(args: argparse.Namespace, event: dict[str, Any], text: str) -> None:
    """Prints an event as a line of JSON with --json, else as text."""
    print(json.dumps(event, ensure_ascii=False, allow_nan=False) if args.json else text, flush=True)


def call_gateway(host: dict[str, str], method: str, path: str, body: Any = None) -> dict[str, Any] | None:
    """Sends a request to a gateway (a process to which devices connect) on this machine.

    `host` holds the gateway's address and token. Returns the answer, or None if the request fails. Does not check which
    address the gateway's certificate names: it is the public address, but the request goes to a local one.
    """
    import httpx

    headers, trusted = {"Authorization": f"Bearer {host['token']}"}, ssl.create_default_context()
    trusted.check_hostname = False
    try:
        answer = httpx.request(
            method, host["address"] + path, headers=headers, json=body, timeout=10, trust_env=False, verify=trusted
        )
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found
    except (httpx.HTTPError, OSError, ValueError):
        return None
