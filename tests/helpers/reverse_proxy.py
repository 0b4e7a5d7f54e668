"""Runs nginx with examples/operation/nginx.conf: nginx ends TLS and forwards one path to each glgpt server."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/operation/nginx.conf"
AROUND = """
daemon off; pid nginx.pid; error_log stderr warn; worker_processes 1;
events {{ }}
http {{
  access_log off; client_body_temp_path body; proxy_temp_path proxy;
  fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  {server}
}}
"""


def certificate(folder: Path) -> tuple[Path, Path]:
    """Creates a self-signed certificate for 127.0.0.1; returns the paths of the certificate and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=127.0.0.1"
    command += " -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def proxied(folder: Path, page: int = 1, split: int = 1, together: int = 1) -> Iterator[tuple[str, Path]]:
    """Runs nginx with the example's server block, which forwards to the local ports `page`, `split` and `together`.

    Yields nginx's origin and the path of its certificate.
    """
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin") or "nginx"
    cert, key = certificate(folder)
    port, server = free_port(), EXAMPLE.read_text()
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("server_name example.org", "server_name 127.0.0.1"),
        ("/etc/ssl/glgpt/cert.pem", str(cert)),
        ("/etc/ssl/glgpt/key.pem", str(key)),
        ("127.0.0.1:8042/;", f"127.0.0.1:{page}/;"),
        ("127.0.0.1:8043/;", f"127.0.0.1:{split}/;"),
        ("127.0.0.1:8044/;", f"127.0.0.1:{together}/;"),
    ):
        assert server.count(old) == 1, old
        server = server.replace(old, new)
    (folder / "nginx.conf").write_text(AROUND.format(server=server))
    log = (folder / "nginx.log").open("wb")
    process = subprocess.Popen([nginx, "-p", str(folder), "-c", "nginx.conf"], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None and time.monotonic() < end, (folder / "nginx.log").read_text()
            time.sleep(0.05)
        yield f"https://127.0.0.1:{port}", cert
    finally:
        process.terminate()
        process.wait(20)
        log.close()
