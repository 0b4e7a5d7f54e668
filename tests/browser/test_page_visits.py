"""Tests visits that share storage or files: two tabs, a full storage, a replaced page, a page closed as it loads."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from browser import wait_without_eval
from helpers.exports import export_few
from training_page import STATE, TRAIN, TWELVE

from glgpt.page.export_options import ExportOptions

pytestmark = pytest.mark.slow

Serve = Callable[..., str]
Browse = Callable[..., Any]
GOLDENS = Path(__file__).parents[1] / "goldens"
RESTORE = "glgpt.training.restore().then((session) => session && session.step)"
WHOLE = """async () => {
  const id = document.querySelector('meta[name="glgpt-export"]').content;
  for (;;) {
    const kept = await caches.match('./whole');
    if (kept && (await kept.text()) === id) return id;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}"""
SHOWN = """glgpt.ready.then(() => {
  const {model, export_id} = glgpt.model.manifest;
  return [model, document.querySelector('meta[name="glgpt-export"]').content === export_id];
})"""


def another(page: Any, address: str) -> Any:
    """Opens another tab of the same browser; returns it when its model is ready."""
    tab = wait_without_eval(page.context.new_page())
    tab.set_default_timeout(90_000)
    tab.goto(address)
    tab.evaluate("glgpt.ready")
    return tab


@pytest.mark.soak
def test_two_tabs_keep_a_run_each(page: Any) -> None:
    address = page.url
    other = another(page, address)
    runs = {}
    for tab, seed in ((page, 1), (other, 2), (page, 3)):  # the third run replaces the first
        tab.evaluate(TRAIN, [TWELVE | {"seed": seed}, 4])
        runs[seed] = tab.evaluate(STATE)
    for tab, seed in ((page, 3), (other, 2)):
        tab.evaluate("glgpt.training.session.start()")  # both runs continue to step 12 and are saved again
        runs[seed] = tab.evaluate(STATE)
    other.reload()
    other.evaluate("glgpt.ready")
    assert other.evaluate(RESTORE) == 12 and other.evaluate(STATE) == runs[2]
    other.close()
    third = another(page, address)
    assert third.evaluate(RESTORE) == 12 and third.evaluate(STATE) == runs[2]
    fourth = another(page, address)
    assert fourth.evaluate(RESTORE) is None  # both saved runs are open in other tabs
    third.evaluate("glgpt.training.reset()")
    page.reload()
    page.evaluate("glgpt.ready")
    assert page.evaluate(RESTORE) == 12 and page.evaluate(STATE) == runs[3]
    assert fourth.evaluate(RESTORE) is None


@pytest.mark.soak
def test_a_full_storage_is_said_and_training_goes_on(site: Path, serve: Serve, browse: Browse) -> None:
    address = serve(site)
    page = browse(address + "#tokens=1&view=train", provokes="QuotaExceeded")
    page.evaluate("glgpt.ready")
    cdp = page.context.new_cdp_session(page)
    origin = {"origin": "/".join(address.split("/")[:3])}
    cdp.send("Storage.overrideQuotaForOrigin", origin | {"quotaSize": 1000})
    page.evaluate(TRAIN, [TWELVE, 0])
    assert page.evaluate("glgpt.training.session.step") == 12
    said = page.evaluate("glgpt.training.unkept")
    assert "storage is full" in said and "save the model" in said and "free space" in said
    cdp.send("Storage.overrideQuotaForOrigin", origin)
    page.evaluate("glgpt.training.session.keep(glgpt.training.session.checkpoint)")
    assert page.evaluate("glgpt.training.unkept") == ""


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns the folders of two models' exports."""
    top = tmp_path_factory.mktemp("versions")
    for name, golden in (("one", "one-f16"), ("two", "vocab3-untied")):
        export_few(GOLDENS / golden, top / name, ExportOptions(name=name), device="software")
    return top / "one", top / "two"


def replace(folder: Path, version: Path) -> None:
    """Replaces a folder at once, since a page that read a partial copy would stop permanently."""
    new, old = folder.with_name("new"), folder.with_name("old")
    shutil.copytree(version, new)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@pytest.mark.parametrize("file", ["manifest.json", "weights-00.bin"])
def test_a_page_replaced_while_it_loads_is_the_new_one(
    versions: tuple[Path, Path], serve: Serve, browse: Browse, tmp_path: Path, file: str
) -> None:
    one, two = versions
    replace(tmp_path / "page", one)
    page = browse("about:blank#", provokes="Failed to load resource")

    replaced: list[str] = []

    def answer(route: Any) -> None:
        if not replaced:
            replaced.append(file)
            replace(tmp_path / "page", two)
        route.continue_()

    page.route(f"**/{file}", answer)
    page.goto(serve(tmp_path / "page") + "#tokens=1")
    page.get_by_text("two is").first.wait_for()
    assert replaced and page.evaluate(SHOWN) == ["two", True]


def test_a_manifest_of_another_export_is_said(
    versions: tuple[Path, Path], serve: Serve, browse: Browse, tmp_path: Path
) -> None:
    """Fails if, on a host with a partial upload, the page does not reload once and then stop with an error."""
    one, two = versions
    replace(tmp_path / "page", one)
    shutil.copyfile(two / "manifest.json", tmp_path / "page/manifest.json")
    page = browse(serve(tmp_path / "page") + "#tokens=1")
    page.get_by_role("alert").wait_for()
    page.wait_for_function("Number(sessionStorage.getItem('glgpt reloaded'))")
    page.get_by_role("alert").wait_for()
    assert "replaced by a new export while it loaded. Reload" in page.get_by_role("alert").inner_text()


def test_offline_the_last_whole_version_is_served(
    versions: tuple[Path, Path], serve: Serve, browse: Browse, tmp_path: Path
) -> None:
    one, two = versions
    folder = tmp_path / "page"
    replace(folder, one)
    page = browse(serve(folder) + "#tokens=1", keeps=True, provokes="Failed to load resource|ERR_INTERNET")
    page.evaluate("glgpt.ready")
    first = page.evaluate(WHOLE)
    replace(folder, two)
    (folder / "weights-00.bin").unlink()  # the second version is incomplete
    page.reload()
    page.get_by_role("alert").wait_for()
    page.context.set_offline(True)
    page.reload()
    assert page.evaluate(SHOWN) == ["one", True]
    page.context.set_offline(False)
    replace(folder, two)
    page.reload()
    assert page.evaluate(SHOWN) == ["two", True]
    assert page.evaluate(WHOLE) != first
    page.context.set_offline(True)
    page.reload()
    assert page.evaluate(SHOWN) == ["two", True]


class Halting(SimpleHTTPRequestHandler):
    """Serves a folder. Until `go` is set, it sends only the first half of one shard, `weights-01.bin`."""

    go: ClassVar[threading.Event]
    begun: ClassVar[threading.Event]
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        name = self.path.split("?")[0].rpartition("/")[2]
        self.asked.append(name)
        if name != "weights-01.bin" or self.go.is_set():
            super().do_GET()
            return
        data = (Path(self.directory) / name).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.begun.set()
        self.go.wait(60)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def halting(small: tuple[Path, Path]) -> Iterator[str]:
    Halting.go, Halting.begun, Halting.asked = threading.Event(), threading.Event(), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Halting, directory=str(small[1])))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    Halting.go.set()
    server.shutdown()
    server.server_close()


@pytest.mark.soak
def test_a_page_closed_as_it_loads_begins_again(halting: str, browse: Browse) -> None:
    page = browse(halting + "#tokens=1", keeps=True)
    assert Halting.begun.wait(60)
    keys = "caches.keys().then((names) => Promise.all(names.map((n) => caches.open(n).then((c) => c.keys()))))"
    while not any(
        "weights-00.bin" in url for url in page.evaluate(f"{keys}.then((all) => all.flat().map((r) => r.url))")
    ):
        page.wait_for_timeout(50)
    second = wait_without_eval(page.context.new_page())
    page.close()
    Halting.go.set()
    Halting.asked.clear()
    second.goto(halting + "#tokens=1")
    second.evaluate("glgpt.ready")
    assert "weights-00.bin" not in Halting.asked and "weights-01.bin" in Halting.asked
    sizes = """async () => {
      const wrong = [];
      for (const {file, sha256, bytes} of glgpt.model.manifest.shards) {
        const kept = await caches.match(`./${file}?sha256=${sha256}`);
        if ((await kept?.arrayBuffer())?.byteLength !== bytes) wrong.push(file);
      }
      return wrong;
    }"""
    second.wait_for_timeout(500)
    assert second.evaluate(sizes) == []
