"""Tests checkpoints by Hub name: huggingface_hub downloads them from a local imitation of the Hub."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.gguf_files import LLAMA, llama, llama_tensors, tokenizer
from helpers.soak import mostly_soak

from glgpt.checkpoint.finding import embedded_weights
from glgpt.checkpoint.hub import check_names, guard_cache
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.gguf.writer import write_gguf

HERE = Path(__file__).parents[1]
GOLDENS = HERE / "goldens"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves the part of the Hub's HTTP interface that downloads use, on a free local port."""

    daemon_threads = True

    def __init__(self, models):
        self.models = models
        self.asked = []
        self.headers = {}  # by HTTP status, headers that override the usual headers
        super().__init__(("127.0.0.1", 0), HubHandler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        name, _, rest = self.path.strip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        if rest:  # does not record other paths that the library requests
            self.server.asked.append((self.command, self.path))
        folder = self.server.models.get(name)
        if folder == "gated":
            return self.reply(403, {"X-Error-Code": "GatedRepo"})
        if folder == "broken":
            return self.reply(418, {})
        if folder is None or revision not in ("main", COMMIT):
            return self.reply(401, {"X-Error-Code": "RepoNotFound"})
        path = folder / file
        if not path.is_file():
            return self.reply(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        content = path.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        return self.reply(200, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, content)

    do_GET = do_HEAD  # noqa: N815

    def reply(self, status, headers, content=b""):
        self.send_response(status)
        for key, value in (headers | self.server.headers.get(status, {})).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(tmp_path):
    models = {"gated/model": "gated", "broken/model": "broken", "empty/model": tmp_path}
    for name in ("wide", "dhead2-gelu", "legacy-untied"):
        models["tiny/" + name] = GOLDENS / name
    models["gpt2"] = models["tiny/wide"]
    both = models["tiny/both"] = tmp_path / "served"
    shutil.copytree(GOLDENS / "vocab3-untied", both)
    (both / "pytorch_model.bin").write_bytes(b"never fetched")
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(embedded_weights() / name, both)
    half = models["tiny/half"] = tmp_path / "half"
    shutil.copytree(GOLDENS / "dhead2-gelu", half)
    (half / "model-00002-of-00002.safetensors").unlink()
    bare = models["tiny/bare"] = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(GOLDENS / "wide" / "config.json", bare)
    files = models["tiny/files"] = tmp_path / "files"
    (files / "q8").mkdir(parents=True)
    llama(files / "a.gguf")
    half_of(files / "q8")
    with Hub(models) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def half_of(folder):
    """Writes a model that is split into two GGUF files."""
    tensors = llama_tensors("Q8_0")
    for i in (0, 1):
        about = (LLAMA | tokenizer() if i == 0 else {}) | {"split.count": 2, "split.no": i}
        write_gguf(folder / f"m-{i + 1:05d}-of-00002.gguf", about, tensors[i::2])


def open_all(names, endpoint, cache, **environment):
    """Opens models in a new process, since the Hub library reads its settings once.

    Returns for each name the path and the sum of the absolute weights, or the error message.
    """
    script = (
        "import json, sys\nfrom glgpt.checkpoint.opening import Checkpoint\nfrom glgpt.errors import GlgptError\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        with Checkpoint.open(name) as c:\n"
        "            print(json.dumps([str(c.path), float(sum(abs(c.read(n)).sum() for n in sorted(c.names)))]))\n"
        "    except GlgptError as error:\n        print(json.dumps(str(error)))\n"
    )
    base = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script, *names],
        check=False,
        capture_output=True,
        text=True,
        env=base | settings | environment,
        cwd=cache,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_hub_models_are_fetched_and_cached(hub, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    names = ["tiny/both", "tiny/dhead2-gelu", "tiny/legacy-untied", "gpt2"]
    fetched = open_all(names, hub.url, cache)
    for name, got in zip(names, fetched, strict=True):
        with Checkpoint.open(hub.models[name]) as local:
            total = float(sum(abs(local.read(tensor)).sum() for tensor in sorted(local.names)))
        assert got[1] == total, got
        assert COMMIT in got[0]
    got = {file.name for file in Path(fetched[0][0]).iterdir()}
    assert got == {"config.json", "model.safetensors", "vocab.json", "merges.txt"}  # the .bin file is not fetched

    asked = len(hub.asked)
    assert open_all(names, hub.url, cache) == fetched
    assert len(hub.asked) - asked == len(names)  # a cached model needs one request, for its revision

    assert open_all([*names, "tiny/wide"], hub.url, cache, HF_HUB_OFFLINE="1")[: len(names)] == fetched
    offline = open_all(["tiny/wide"], hub.url, cache, HF_HUB_OFFLINE="1")[0]
    assert offline.startswith("there is no folder tiny/wide here, and no model tiny/wide in the local Hub cache")
    assert len(hub.asked) - asked == len(names)


def test_hub_refusals(hub, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    expected = {
        "no/such-model": f"there is no folder no/such-model here, and no model no/such-model on {hub.url}",
        "smolm2": "did you mean smollm2? there is no folder smolm2 here",
        "nosuchmodel": "if it is private, run hf auth login",
        "gated/model": f"accept its terms at {hub.url}/gated/model",
        "broken/model": f"cannot be downloaded from {hub.url}",
        "empty/model": "has no config.json",
        "tiny/bare": "holds no weights",
        "tiny/half": "lacks model-00002-of-00002.safetensors",
        "tiny/files:no.gguf": "model tiny/files on the Hub has no file no.gguf",
        "no/such:a.gguf": f"and no model no/such on {hub.url}",
        "tiny/files": "has no config.json; for a GGUF file, give tiny/files:FILE.gguf",
        "bad name!": "is neither a folder nor a valid model name",
        "a..b": "is neither a folder nor a valid model name",
        "ends/": "is neither a folder nor a valid model name",
        "": "is neither a folder nor a valid model name",
    }
    for name, message in zip(expected, open_all(expected, hub.url, cache), strict=True):
        assert isinstance(message, str), name
        assert expected[name] in message, (name, message)
        assert "\n" not in message


@pytest.mark.slow
def test_gguf_files_of_the_hub(hub, tmp_path):
    """Opens a model in one GGUF file and a model split into two. Fails if one cannot be opened offline afterwards."""
    cache = tmp_path / "cache"
    cache.mkdir()
    names = ["tiny/files:a.gguf", "tiny/files:q8/m-00001-of-00002.gguf"]
    fetched = open_all(names, hub.url, cache)
    for name, got in zip(names, fetched, strict=True):
        with Checkpoint.open(tmp_path / "files" / name.partition(":")[2]) as local:
            assert got[1] == float(sum(abs(local.read(tensor)).sum() for tensor in sorted(local.names))), got
    assert Path(fetched[0][0]).name == "a.gguf"
    assert sorted(path.name for path in Path(fetched[1][0]).parent.iterdir()) == [
        "m-00001-of-00002.gguf", "m-00002-of-00002.gguf",
    ]  # fmt: skip
    assert open_all(names, hub.url, cache, HF_HUB_OFFLINE="1") == fetched
    offline = open_all(["tiny/files:q8/b.gguf"], hub.url, cache, HF_HUB_OFFLINE="1")[0]
    assert "HF_HUB_OFFLINE prevents the download" in offline


@pytest.mark.slow
def test_hub_that_is_down(hub, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    fetched = open_all(["tiny/wide"], hub.url, cache)
    hub.shutdown()
    hub.server_close()
    again = open_all(["tiny/wide", "tiny/both"], hub.url, cache)
    assert again[0] == fetched[0]
    assert f"there is no folder tiny/both here, and model tiny/both cannot be downloaded from {hub.url} (" in again[1]
    assert "Connection refused" in again[1]


def everything(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "cache" not in path.parts}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "status", "header"),
    mostly_soak(
        [
            ("tiny/wide", 200, "ETag"),
            ("tiny/wide", 200, "X-Linked-Etag"),
            ("tiny/wide", 200, "X-Repo-Commit"),
            ("tiny/bare", 404, "X-Repo-Commit"),
        ],
        [("tiny/wide", 200, "ETag")],
    ),
)
def test_a_mirror_writes_nothing_outside_the_cache(hub, tmp_path, model, status, header):
    cache = tmp_path / "deep" / "cache"
    cache.mkdir(parents=True)
    before = everything(tmp_path)
    hub.headers[status] = {header: "../../../../outside" if "Commit" in header else '"../../../../outside"'}
    (message,) = open_all([model], hub.url, cache)
    assert everything(tmp_path) == before
    assert message.startswith(f"{hub.url}/{model}/resolve/")
    assert f"answers with {header} " in message and "outside" in message and "HF_ENDPOINT" in message


@pytest.mark.parametrize("etag", ['".."', '""', '"a/b"', '"a\\\\b"', '"-x"', '"' + "a" * 300 + '"'])
def test_an_etag_that_is_no_file_name_is_refused(etag):
    request = SimpleNamespace(method="HEAD", url="http://127.0.0.1/tiny")
    with pytest.raises(GlgptError, match="ETag"):
        check_names(SimpleNamespace(request=request, headers={"ETag": etag}))


def test_a_session_that_is_opened_again_checks_names_too():
    from huggingface_hub import close_session, get_session

    guard_cache()
    close_session()
    assert get_session().event_hooks["response"].count(check_names) == 1
    guard_cache()
    assert get_session().event_hooks["response"].count(check_names) == 1
