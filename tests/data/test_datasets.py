"""Tests training texts: bundled sets, cleaning, inspection, and fetching from servers that misbehave."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers import fake_trainer
from helpers.stranger import BYTES, TEXT, Stranger

import glgpt
from glgpt import data
from glgpt.cli import main
from glgpt.data import fetching, limited_http
from glgpt.data.books import BOOKS, NO_BOOKS, OPEN_MIRROR
from glgpt.errors import GlgptError
from glgpt.page.reading import Reading

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetching, "RETRY_WAIT_S", 0.01)
    Stranger.asked.clear()
    Stranger.ranges.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["text", "moved", "busy", "resumed", "weak", "padded"])
def test_a_text_comes_whole_and_is_kept_by_its_content(stranger: str, path: str) -> None:
    seen: list[tuple[int, int]] = []
    found = data.fetch(f"{stranger}/{path}", progress=lambda *done: seen.append(done))
    assert found.path.read_bytes() == BYTES
    assert found.sha256 == hashlib.sha256(BYTES).hexdigest() == found.path.stem
    assert seen[-1] == (len(BYTES), len(BYTES))
    assert data.source_of(found.sha256) == found.record() and found.source == f"{stranger}/{path}"
    if path == "weak":
        assert Stranger.ranges == [None, None]
    if path == "resumed":
        assert Stranger.ranges[0] is None and Stranger.ranges[1] == f"bytes={len(BYTES) // 3 + 1}-"


@pytest.mark.parametrize(
    ("path", "said", "tries"),
    [
        ("missing", "404", 1),
        ("page", "web page", 1),
        ("dressed", "web page", 1),
        ("latin", "--encoding latin-1", 1),
        ("zeros", "zero byte", 1),
        ("empty", "empty", 1),
        ("file", "not allowed", 1),
        ("cut", "tried 4 times: it ended after", 4),
        ("stalls", "tried 4 times: no byte arrived", 4),
        ("endless", "larger than", 1),
        ("long", "is empty", 1),
        ("lies", "tried 4 times: it sent bytes 0-3/8 where bytes from 4 on were requested", 4),
        ("another", "tried 4 times: it sent bytes 4-7/9 where bytes from 4 on were requested", 4),
        ("drips", "took more than 1 s; allow more with --timeout", 1),
        ("headers", "took more than 1 s; allow more with --timeout", 1),
        ("round", "/round redirects in a circle", 1),
        ("bracket", "leads to an invalid address: Invalid IPv6 URL", 1),
        ("dots", "leads to an invalid address", 1),
    ],
)
def test_a_server_that_says_no_is_named_in_one_line(
    stranger: str, path: str, said: str, tries: int, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.txt"
    if path == "stalls":
        monkeypatch.setattr(limited_http, "STALL_TIMEOUT_S", 0.3)
    limits = ["--timeout", "1"] if path in ("drips", "headers") else []
    assert main(["data", "fetch", f"{stranger}/{path}", "--out", str(out), "--max-size", "1MB", *limits]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert len(Stranger.asked) == tries and not out.exists()
    assert not list((tmp_path / "cache").rglob("*.txt"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://a..b/", "label empty"),
        ("http://127.0.0.1:99999/x", "Port out of range"),
        ("http://127.0.0.1:x/x", "Port could not be cast"),
        ("http:///x", "does not begin with"),
        ("file:///etc/hostname", "give a data set, an http address or book:N"),
        ("novel", "give a data set, an http address or book:N"),
    ],
)
def test_an_invalid_address_is_refused(name: str, said: str) -> None:
    with pytest.raises(GlgptError, match=said):
        data.fetch(name)


def test_an_address_may_have_any_characters(stranger: str) -> None:
    assert data.fetch(f"{stranger}/text/naïve 漢字?größe=%41").path.read_bytes() == BYTES
    assert Stranger.asked == ["/text/na%C3%AFve%20%E6%BC%A2%E5%AD%97?gr%C3%B6%C3%9Fe=%41"]
    assert fetching.address("http://Bücher.example:80/ä#x") == "http://xn--bcher-kva.example:80/%C3%A4"
    assert fetching.address("http://[::1]:8000/x") == "http://[::1]:8000/x"
    assert fetching.address("http://漢字.example") == "http://xn--p8s937b.example"


def test_nobody_there_is_said_so(stranger: str) -> None:
    port = stranger.rpartition(":")[2]
    with pytest.raises(GlgptError, match="tried 4 times"):
        data.fetch(f"http://127.0.0.1:{'1' if port != '1' else '2'}/text")


def test_another_encoding_and_a_mirror_can_be_named(stranger: str, tmp_path: Path) -> None:
    assert data.fetch(f"{stranger}/latin", encoding="latin-1").path.read_text() == "naïve café"
    for other in ("hex", "rot13", "undefined", "no-such-encoding"):
        with pytest.raises(GlgptError, match="unknown encoding"):
            data.fetch(f"{stranger}/latin", encoding=other)
    data.fetch("book:1342", mirror=stranger)
    assert Stranger.asked[-1] == "/cache/epub/1342/pg1342.txt"
    with pytest.raises(GlgptError, match=r"--mirror ftp://127.0.0.1 is not an http address"):
        data.fetch("book:1", mirror="ftp://127.0.0.1")


@pytest.mark.slow
def test_a_run_says_where_its_text_is_from(stranger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "glgpt.training.trainer", fake_trainer)
    assert main(["data", "fetch", f"{stranger}/text", "--out", str(tmp_path / "a.txt")]) == 0
    (tmp_path / "b.txt").write_text(TEXT)  # the same content as a.txt
    (tmp_path / "c.txt").write_text("My own text.\n" * 100)
    size = {"n_layer": 1, "n_head": 1, "n_embd": 8, "context": 8, "batch": 1, "steps": 1, "device": "software"}
    for files, count in ((["a.txt", "c.txt"], 1), (["b.txt"], 1), (["c.txt"], 0)):
        out = tmp_path / f"run-{files[0]}"
        glgpt.train([tmp_path / name for name in files], out=out, eval_every=0, sample_every=0, **size)
        sources = json.loads((out / "train.json").read_text())["sources"]
        assert [s["source"] for s in sources] == [f"{stranger}/text"] * count


@pytest.mark.parametrize("name", data.SETS)
def test_a_bundled_set_is_always_the_same(name: str) -> None:
    digests = {
        "plays": "6930030c",
        "poems": "87a4b1f6",
        "names": "c1713ab1",
        "addition": "767378e5",
        "sorting": "3e3df412",
    }
    text = data.bundled(name)
    assert text == data.bundled(name) and text.endswith("\n") and 50_000 < len(text) < 300_000
    assert data.clean(text)[0] == text  # the page cleans texts, and must train on the same text
    if name in digests:  # the set "code" changes with the package
        assert hashlib.sha256(text.encode()).hexdigest().startswith(digests[name])


def test_tasks_are_right_and_ask_nothing_twice() -> None:
    sums = data.bundled("addition").splitlines()
    assert len(set(sums)) == len(sums) == 10_000
    assert all(sum(map(int, line.split("=")[0].split("+"))) == int(line.split("=")[1]) for line in sums)
    lists = [line.split("=") for line in data.bundled("sorting").splitlines()]
    assert len({question for question, _ in lists}) == len(lists) > 15_000
    assert all("".join(sorted(question)) == answer and len(answer) == 6 for question, answer in lists)


def test_the_command_writes_a_set_and_never_over_a_file(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "sums.txt"
    assert main(["data", "fetch", "addition", "--out", str(out)]) == 0
    assert out.read_text() == data.bundled("addition")
    assert main(["data", "fetch", "names", "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err and out.read_text() == data.bundled("addition")
    assert main(["data", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)][: len(data.SETS)] == list(data.SETS)


START = "*** START OF THE PROJECT GUTENBERG "


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (START * 40_000, (START * 40_000).rstrip()),
        (" " * 100_000 + "x", " " * 100_000 + "x"),
        ("\n" * 100_000 + "x\n*** END OF THE PROJECT GUTENBERG", "\n\nx\n"),
    ],
    ids=["markers", "blanks", "lines"],
)
def test_cleaning_is_linear_in_a_text_of_repeats(text: str, cleaned: str) -> None:
    """Regression: patterns that scanned from each position to the end of the text took 20 seconds or more."""
    begun = time.process_time()
    assert data.clean(text)[0] == cleaned
    assert time.process_time() - begun < 3


def test_cleaning_takes_away_what_it_says(tmp_path: Path, capsys: Capture) -> None:
    book = (
        "Licence\r\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\r\n\r\nOne.  \r\n\r\n\r\n\r\nTwo.\r\n\r\n"
        "*** END OF THE PROJECT GUTENBERG EBOOK X ***\r\nMore licence\r\n"
    )
    text, removed = data.clean([book, "Three.\n", "Three.\n"])
    assert text == "One.\n\nTwo.\nThree.\n"
    assert [(r.step, r.places) for r in removed] == [("headers", 2), ("lines", 4), ("blanks", 2), ("duplicates", 1)]
    assert sum(r.characters for r in removed) == len(book) + 14 - len(text)
    assert data.clean(book, [])[0] == book
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file in files:
        file.write_bytes(book.encode())
    assert main(["data", "clean", *map(str, files), "--out", str(tmp_path / "out.txt"), "--steps", "duplicates"]) == 0
    assert (tmp_path / "out.txt").read_bytes() == book.encode()
    assert main(["data", "clean", str(files[0]), "--out", str(tmp_path / "no.txt"), "--steps", "polish"]) == 2
    assert "unknown cleaning step" in capsys.readouterr().err


def test_inspecting_counts(tmp_path: Path, capsys: Capture) -> None:
    text = "abc ДЕ\n漢字 12\n"
    found = data.inspect(text, validation=0.25)
    assert (found.bytes, found.characters, found.lines, found.distinct) == (19, 13, 2, 11)
    assert found.scripts == pytest.approx({"Latin": 3 / 7, "Cyrillic": 2 / 7, "Han": 2 / 7})
    assert found.held_back == 4  # the held-back share begins at byte 14.25, rounded up to a character
    (tmp_path / "text.txt").write_text(text)
    assert main(["data", "inspect", str(tmp_path / "text.txt")]) == 0
    assert "Latin 42.9%" in capsys.readouterr().out


def test_the_books_of_a_page_come_from_its_mirror_alone() -> None:
    usual = Reading().listed()
    assert [b["title"] for b in usual] == [b.title for b in BOOKS] and all(
        b["url"].startswith(OPEN_MIRROR) for b in usual
    )
    own = Reading("https://books.example:8080/mirror/").listed()
    assert own[0]["url"] == "https://books.example:8080/mirror/cache/epub/1342/pg1342.txt"
    assert Reading(NO_BOOKS).listed() == []
    for wrong in ("books.example", "file:///books", "https://a b", "https://x;script-src", "https://x'"):
        with pytest.raises(GlgptError, match="not a server's address"):
            Reading(hosts=[wrong])
        with pytest.raises(GlgptError):
            Reading(wrong)


def test_a_pages_policy_names_what_it_may_read(tmp_path: Path) -> None:
    index = tmp_path / "index.html"
    policy = "<meta content=\"default-src 'none'; connect-src 'self'; img-src 'self'\">"
    index.write_text(policy)
    Reading("https://books.example/mirror", ["http://127.0.0.1:8000/x"]).allow(index)
    wanted = "connect-src 'self' https://books.example http://127.0.0.1:8000; img-src"
    assert wanted in index.read_text()
    index.write_text(policy)
    Reading(NO_BOOKS).allow(index)
    assert index.read_text() == policy
