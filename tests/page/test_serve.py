"""Tests `glgpt serve` with plain sockets: served and refused paths, headers, and how the server ends."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from load import load

from glgpt.errors import ArgumentError, FileError
from glgpt.page.serve import Server, application, serving

BYTES = bytes(range(100))
INLINE = "\n  let a = 1;\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(f"<p><script>{INLINE}</script><script src='a.js'></script><style>p {{}}</style>")
    (folder / "own.html").write_text("<meta charset=utf-8><meta http-equiv='Content-Security-Policy' content='x'><p>")
    (folder / "styled.html").write_text("<pre id=a style='white-space: pre-wrap'></pre>")
    (folder / "a.bin").write_bytes(BYTES)
    for name in ("a.js", "a.json", "a.wasm", "a.css", "a.svg", "strange.xyz", "assets/b.js"):
        (folder / name).write_text("")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def port(site: Path) -> Iterator[int]:
    with serving(application(site)) as address:
        yield int(address.rsplit(":", 1)[1].rstrip("/"))


def ask(port: int, *requests: bytes) -> bytes:
    """Sends requests on one connection and returns all answers. The last request must close the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as made:
        made.sendall(b"".join(requests))
        return b"".join(iter(lambda: made.recv(1 << 16), b""))


def request(path: str, *headers: str, method: str = "GET", close: bool = True, host: str = "127.0.0.1") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, *(["Connection: close"] if close else [])]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}, body


@pytest.mark.parametrize(
    ("asked", "status", "expected"),
    [
        (None, 200, BYTES),
        ("bytes=10-19", 206, BYTES[10:20]),
        ("bytes=90-", 206, BYTES[90:]),
        ("bytes=-5", 206, BYTES[-5:]),
        ("bytes=50-1000", 206, BYTES[50:]),
        ("bytes=100-", 416, b""),
        ("bytes=" + "9" * 4300 + "-", 416, b""),
        ("bytes=" + "9" * 4400 + "-", 400, None),
        ("bytes=5-1", 400, None),
        ("lines=1-2", 400, None),
    ],
)
def test_ranges(port: int, asked: str | None, status: int, expected: bytes | None) -> None:
    found, headers, body = parsed(ask(port, request("/a.bin", *([f"Range: {asked}"] if asked else []))))
    assert found == status
    if expected is not None:
        assert body == expected and int(headers["content-length"]) == len(expected)
    assert parsed(ask(port, request("/a.bin")))[0] == 200


def test_texts_are_compressed_and_weights_are_not(site: Path, port: int) -> None:
    """Fails if scripts are not compressed, or if weights are: the page computes progress from the weights' length."""
    script = b"let text = 'to be or not to be';\n" * 1000
    (site / "large.js").write_bytes(script)
    (site / "large.bin").write_bytes(bytes(100_000))
    status, headers, body = parsed(ask(port, request("/large.js", "Accept-Encoding: gzip, br")))
    assert (status, headers["content-encoding"], headers["vary"]) == (200, "gzip", "Accept-Encoding")
    assert len(body) < len(script) / 3
    status, headers, body = parsed(ask(port, request("/large.js")))
    assert (status, body) == (200, script) and "content-encoding" not in headers
    status, headers, body = parsed(ask(port, request("/large.js", "Accept-Encoding: gzip", "Range: bytes=0-9")))
    assert (status, body) == (206, script[:10]) and "content-encoding" not in headers
    status, headers, body = parsed(ask(port, request("/large.bin", "Accept-Encoding: gzip")))
    assert (status, len(body), headers["content-length"]) == (200, 100_000, "100000")


def test_a_head_with_a_range_leaves_the_connection_whole(port: int) -> None:
    both = ask(port, request("/a.bin", "Range: bytes=0-9", method="HEAD", close=False), request("/a.bin"))
    head, rest = both.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 206") and b"content-length: 10" in head
    assert parsed(rest)[::2] == (200, BYTES)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"), ("/a.js", "text/javascript; charset=utf-8"), ("/a.json", "application/json"),
        ("/a.wasm", "application/wasm"), ("/a.css", "text/css; charset=utf-8"), ("/a.svg", "image/svg+xml"),
        ("/a.bin", "application/octet-stream"), ("/strange.xyz", "application/octet-stream"),
        ("/assets/b.js?x=1", "text/javascript; charset=utf-8"),
    ],
)  # fmt: skip
def test_types_and_headers(port: int, path: str, kind: str) -> None:
    status, headers, _ = parsed(ask(port, request(path)))
    assert (status, headers["content-type"]) == (200, kind)
    wanted = {
        "cache-control": "no-cache", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp",
        "cross-origin-resource-policy": "same-origin",
    }  # fmt: skip
    assert wanted.items() <= headers.items()
    assert "server" not in headers and "frame-ancestors 'none'" in headers["content-security-policy"]
    again = parsed(ask(port, request(path, f"If-None-Match: {headers['etag']}")))
    assert (again[0], again[2]) == (304, b"") and wanted.items() <= again[1].items()


def test_a_page_may_run_its_own_scripts_alone(port: int) -> None:
    def allowed(kind: str, text: str) -> str:
        return f"{kind}-src 'self' 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}';"

    policy = parsed(ask(port, request("/")))[1]["content-security-policy"]
    assert allowed("script", INLINE) in policy and allowed("style", "p {}") in policy
    for part in ("connect-src 'self'", "worker-src 'self' blob:", "img-src 'self' data: blob:", "object-src 'none'"):
        assert part in policy
    assert "unsafe" not in policy
    policy = parsed(ask(port, request("/styled.html")))[1]["content-security-policy"]
    assert "style-src-attr 'unsafe-inline'" in policy and "script-src 'self';" in policy
    assert parsed(ask(port, request("/own.html")))[1]["content-security-policy"] == "frame-ancestors 'none'"


@pytest.mark.parametrize(
    "path",
    ["/%00", "/a%00.js", "/link", "/folder/secret", "/folder", "/assets", "/assets/", "/pipe", "/../secret", "/nothing",
     "/..%2fsecret", "/%2e%2e/secret", "//etc/passwd", "/" + "x" * 300, "/" + "x/" * 3000, "/%ff%fe", "/a.bin/x"],
)  # fmt: skip
def test_what_is_not_served(port: int, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, headers, body = parsed(ask(port, request(path)))
    assert status == 404 and b"secret" not in body and b"b.js" not in body and headers["referrer-policy"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1", True), ("127.0.0.1:8042", True), ("192.168.1.23:8042", True), ("[::1]:8042", True),
        ("localhost:8042", True), ("LOCALHOST", True), ("localhost.", True), (socket.gethostname(), True),
        ("class.example:80", True), ("evil.example", False), ("127.0.0.1.evil.example:8042", False), ("", False),
        ("localhost@evil.example", False), ("evil.example:", False), ("127.0.0.1:1@evil.example", False),
    ],
)  # fmt: skip
def test_it_answers_to_this_machine_s_names_alone(site: Path, host: str, known: bool) -> None:
    """Fails if the server accepts another site's name for this address (DNS rebinding)."""
    with serving(application(site, names=["class.example"])) as address:
        port = int(address.rsplit(":", 1)[1].rstrip("/"))
        status, headers, body = parsed(ask(port, request("/a.bin", host=host)))
    assert (status, body == BYTES) == ((200, True) if known else (421, False))
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.slow
def test_a_classroom_is_told_the_address_and_what_it_means(site: Path) -> None:
    with command(str(site), "--port", "0", "--host", "0.0.0.0") as process:
        assert process.stdout
        line = process.stdout.readline()
        host, port = line.removeprefix("http://").rstrip("/\n").rsplit(":", 1)
        assert host != "0.0.0.0" and ipaddress.ip_address(host)
        with socket.create_connection((host, int(port)), timeout=20) as made:
            made.sendall(request("/a.bin", host=f"{host}:{port}"))
            assert b"".join(iter(lambda: made.recv(1 << 16), b"")).endswith(BYTES)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert out == "" and "Anyone on this network can open this address" in err  # no QR code: stdout is not a terminal
    with command(str(site), "--port", "0", "--host", "203.0.113.7") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "") and "203.0.113.7 is not an address of this machine" in err


def test_no_other_method(port: int) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert parsed(ask(port, request("/", method=method)))[0] == 405


def test_nonsense_and_resets_leave_it_silent_and_answering(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    for data in (b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"x" * 100_000, b"\x16\x03\x01\x02\x00\x01\x00"):
        for reset in (False, True):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as made:
                if reset:
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                made.sendall(data)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            made.sendall(request("/a.bin", close=False))
            made.recv(1)
    assert parsed(ask(port, request("/a.bin")))[::2] == (200, BYTES)
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_served_is_refused(tmp_path: Path, site: Path) -> None:
    with pytest.raises(FileError, match=r"has no index\.html"):
        application(tmp_path)
    with pytest.raises(ArgumentError, match="port 99999 cannot be used: it must be from 0 to 65535"):
        Server(application(site), 99999)
    for host, shown in (("", "an empty host"), ("\udcff", r"\\udcff"), ("a..b", r"a\.\.b")):
        with pytest.raises(ArgumentError, match=f"{shown} is not an address of this machine"):
            Server(application(site), 0, host)


def command(*args: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "glgpt", "serve", *args], text=True, **pipes)  # type: ignore[call-overload, no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGINT, 130, "glgpt: interrupted\n"), (signal.SIGTERM, 143, "glgpt: terminated\n")],
)
def test_a_signal_ends_it_at_once_whoever_is_connected(site: Path, number: int, code: int, line: str) -> None:
    with command(str(site), "--port", "0") as process:
        assert process.stdout
        port = int(process.stdout.readline().rsplit(":", 1)[1].rstrip("/\n"))
        with (
            socket.create_connection(("127.0.0.1", port)) as half,
            socket.create_connection(("127.0.0.1", port)) as idle,
        ):
            half.sendall(b"GET / HT")
            idle.sendall(request("/a.bin", close=False))
            idle.recv(10)
            process.send_signal(number)
            assert process.communicate(timeout=20) == ("", line)
    assert process.returncode == code


@pytest.mark.slow
def test_a_taken_port_and_a_strange_name_are_one_line(site: Path, port: int) -> None:
    for args, said in (
        ((str(site), "--port", str(port)), f"port {port} cannot be used: Address already in use"),
        (("a\n\x1b[2Jb",), "a\\n\\x1b[2Jb has no index.html"),
        (("a\0b".replace("\0", "\x07"),), "a\\x07b"),
    ):
        with command(*args) as process:
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (2, "") and said in err and err.count("\n") == 1 and err[:-1].isprintable()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_it_answers_under_load() -> None:
    """Runs a short part of `tests/page/load.py --seconds 600`."""
    found = load(3, half=50, aborts=10)
    assert found["checks"] > 1 and found["slowest_s"] < 10 and found["memory_grown_mib"] < 50
