"""Checks addresses, and finds the names and addresses of this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from urllib.parse import SplitResult, urlsplit

LOOPBACK = "127.0.0.1"
ELSEWHERE = {
    socket.AF_INET: "192.0.2.1",
    socket.AF_INET6: "2001:db8::1",
}  # no machine has these: they are reserved for documentation (RFC 5737, 3849)


def is_address(host: str) -> bool:
    """True if a host is an IP address, not a name."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def url_parts(text: str) -> SplitResult:
    """Returns the parts of a URL; all are empty if it cannot be parsed, such as `http://[` or `http://a:99999`."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises for an invalid port
        return parts
    except ValueError:
        return urlsplit("")


def is_web_address(text: str) -> bool:
    """True if a text is an http or https URL of visible ASCII without quotation marks, < > and backslashes.

    Port 0 is not accepted.
    """
    parts = url_parts(text)
    plain = re.fullmatch(r"[\x21-\x7e]+", text) and not re.search(r"[\"'<>\\]", text)
    return bool(plain and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)


def is_loopback(host: str) -> bool:
    """True if only this machine can connect to a server that listens on `host`."""
    return ipaddress.ip_address(host).is_loopback if is_address(host) else host == "localhost"


def client_network(host: str) -> str:
    """Returns the key under which rate limits count a client: its IPv4 address, or its /64 network for IPv6.

    A single client often controls all addresses of a /64 network.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # not an IP address: for example, the client uses a Unix socket
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


def in_address(host: str) -> str:
    """Returns a host as written in a URL: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def origin_of(url: str) -> str:
    """Returns the origin that browsers send for pages of a URL: without a path or the scheme's default port."""
    parts = urlsplit(url)
    port = "" if parts.port in (None, {"http": 80, "https": 443}[parts.scheme]) else f":{parts.port}"
    return f"{parts.scheme}://{in_address(parts.hostname or '')}{port}"


def own_names() -> set[str]:
    """Returns this machine's names in lower case, including its mDNS name (`.local`)."""
    name = socket.gethostname().lower().rstrip(".")
    return {name, name.split(".")[0], f"{name.split('.')[0]}.local"} - {""}


def reachable(host: str) -> str:
    """Returns the address at which other machines reach a server that listens on `host`.

    If the server listens on all addresses, returns the address of the network interface that leads to other networks,
    or the loopback address if no interface does. The function sends no packet.
    """
    if not is_address(host) or not ipaddress.ip_address(host).is_unspecified:
        return host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for kind in (socket.AF_INET, family):  # a server on all IPv6 addresses accepts IPv4 too
        with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as route:
            route.connect((ELSEWHERE[kind], 9))
            return str(route.getsockname()[0])
    return LOOPBACK
