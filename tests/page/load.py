"""Load-tests `glgpt serve`: clients that never finish a request, clients that abort, and one that checks answers.

    python tests/page/load.py --seconds 600        # ten minutes with 200 half-open and 50 aborting clients

Prints one line of measurements. Fails if an answer is wrong, late or missing, or if the server prints anything.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HALF_REQUESTS = (
    b"",
    b"GET",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
)
LINGER = struct.pack("ii", 1, 0)  # closing resets the connection


def connect(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=10)
    made.settimeout(10)
    return made


def half_open(port: int, stop: threading.Event, clients: int, seed: int) -> None:
    """Keeps `clients` connections that never finish a request. Replaces a twentieth of them every half second."""
    chance = random.Random(seed)
    held: list[socket.socket] = []
    while not stop.is_set():
        while len(held) < clients:
            made = connect(port)
            made.sendall(chance.choice(HALF_REQUESTS))
            held.append(made)
        for old in chance.sample(held, max(1, clients // 20)):
            held.remove(old)
            old.close()
        stop.wait(0.5)
    for old in held:
        old.close()


def aborting(port: int, stop: threading.Event, seed: int) -> None:
    """Repeatedly requests the large file, reads a little of it, and resets the connection."""
    chance = random.Random(seed)
    while not stop.is_set():
        try:
            made = connect(port)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            made.sendall(b"GET /large.bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
            made.recv(chance.choice((1, 1000, 100_000)))
            made.close()
        except OSError:
            pass
        stop.wait(chance.random())


def answer(port: int, request: bytes) -> bytes:
    """Sends a request on a new connection; returns the whole answer."""
    with connect(port) as made:
        made.sendall(request)
        return b"".join(iter(lambda: made.recv(1 << 20), b""))


def load(seconds: float, half: int = 200, aborts: int = 50, seed: int = 1) -> dict[str, Any]:
    """Runs `glgpt serve` under load. Returns measurements, such as the slowest answer and the growth of memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = random.Random(seed).randbytes(8 << 20)
        (folder / "index.html").write_text("<title>page</title>")
        (folder / "large.bin").write_bytes(large)
        digest = hashlib.sha256(large).hexdigest()
        command = [sys.executable, "-m", "glgpt", "serve", name, "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert server.stdout and server.stderr
        port = int(re.findall(r":(\d+)/", server.stdout.readline())[0])
        stop = threading.Event()
        threads = [threading.Thread(target=half_open, args=(port, stop, half // 10, seed + i)) for i in range(10)]
        threads += [threading.Thread(target=aborting, args=(port, stop, seed + i)) for i in range(aborts)]
        for thread in threads:
            thread.start()
        times, first = [], 0
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                start = time.monotonic()
                whole = answer(port, b"GET /large.bin HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                body = whole.partition(b"\r\n\r\n")[2]
                assert hashlib.sha256(body).hexdigest() == digest, "an answer was not the file"
                times.append(time.monotonic() - start)
                first = first or resident(server.pid)
                stop.wait(0.2)
            assert server.poll() is None, "the server ended"
            grown = resident(server.pid) - first
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            server.terminate()
            began = time.monotonic()
            _, said = server.communicate(timeout=20)
        assert (server.returncode, said) == (143, "glgpt: terminated\n"), (server.returncode, said[-500:])
        ended = time.monotonic() - began
    return {
        "seconds": seconds, "half_open": half, "aborting": aborts, "checks": len(times), "slowest_s": max(times),
        "memory_grown_mib": grown / 2**20, "ended_in_s": ended,
    }  # fmt: skip


def resident(pid: int) -> int:
    """Returns the resident memory of a process in bytes (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--half-open", type=int, default=200)
    parser.add_argument("--aborting", type=int, default=50)
    given = parser.parse_args()
    print(load(given.seconds, given.half_open, given.aborting))
