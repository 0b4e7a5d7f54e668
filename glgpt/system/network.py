"""Names and addresses of this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
ELSEWHERE = {
    socket.AF_INET: "192.0.2.1",
    socket.AF_INET6: "2001:db8::1",
}  # kept free for documentation (RFC 5737, 3849)


def is_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def is_web_address(text: str) -> bool:
    """Whether a text is an http or https URL that needs no escapes in HTML."""
    parts = urlsplit(text)
    plain = re.fullmatch(r"[\x21-\x7e]+", text) and not re.search(r"[\"'<>\\]", text)
    return bool(plain and parts.scheme in ("http", "https") and parts.hostname)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on a host."""
    return ipaddress.ip_address(host).is_loopback if is_address(host) else host == "localhost"


def in_address(host: str) -> str:
    """A host as a URL has it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def own_names() -> set[str]:
    """What this machine is called, in lower case, also on a network without a server for names."""
    name = socket.gethostname().lower().rstrip(".")
    return {name, name.split(".")[0], f"{name.split('.')[0]}.local"} - {""}


def reachable(host: str) -> str:
    """The address at which others reach what listens on `host`: of all addresses, that of the way to other networks.

    Nothing is sent. Where there is no such way it is the loopback address.
    """
    if not is_address(host) or not ipaddress.ip_address(host).is_unspecified:
        return host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for kind in (socket.AF_INET, family):  # what listens on all of IPv6 is reached by IPv4 too
        with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as way:
            way.connect((ELSEWHERE[kind], 9))
            return str(way.getsockname()[0])
    return LOOPBACK
