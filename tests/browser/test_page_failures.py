"""Tests failures of the page: devices that cannot run it, lost contexts, damaged files.

A small model suffices, since the page's reaction to a failure does not depend on the model.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from browser import LOSE_AT
from helpers.soak import mostly_soak

from glgpt.inference.model import LanguageModel

pytestmark = pytest.mark.slow

PROMPT = "First Citizen:\nBefore we proceed any further, hear me speak."
Serve = Callable[..., str]
Browse = Callable[..., Any]

SMALL_TEXTURES = """
const get = WebGL2RenderingContext.prototype.getParameter;
WebGL2RenderingContext.prototype.getParameter = function (name) {
  return name === this.MAX_TEXTURE_SIZE ? 64 : get.call(this, name);
};"""
NO_MEMORY = """
const get = WebGL2RenderingContext.prototype.getError;
const store = WebGL2RenderingContext.prototype.texStorage3D;
let asked = 0, full = false;
WebGL2RenderingContext.prototype.texStorage3D = function (target, levels, format, width, height, layers) {
  asked += 16 * width * height * layers;
  full ||= asked > 2e5;
  return store.call(this, target, levels, format, width, height, layers);
};
WebGL2RenderingContext.prototype.getError = function () {
  const said = full ? this.OUT_OF_MEMORY : get.call(this);
  full = false;
  return said;
};"""
NO_WEBGL = """
for (const kind of [HTMLCanvasElement, OffscreenCanvas]) {
  const get = kind.prototype.getContext;
  kind.prototype.getContext = function (name, ...rest) {
    return name === 'webgl2' ? null : get.call(this, name, ...rest);
  };
}"""


LYING = """
// Claims to draw to eight targets, and writes to the first four of them.
const draw = WebGL2RenderingContext.prototype.drawArrays, name = WebGL2RenderingContext.prototype.drawBuffers;
let targets = [];
globalThis.drawn = 0;
WebGL2RenderingContext.prototype.drawBuffers = function (list) { name.call(this, (targets = list)); };
WebGL2RenderingContext.prototype.drawArrays = function (...args) {
  globalThis.drawn++;
  if (targets.length <= 4) return draw.apply(this, args);
  name.call(this, targets.map((target, i) => (i < 4 ? target : this.NONE)));
  draw.apply(this, args);
  name.call(this, targets);
};"""
ONE_TARGET = LYING.replace("4", "1")
MEDIUMP = """
// Computes floats with ten bits of the fraction, as mediump allows; integers are exact.
const source = WebGL2RenderingContext.prototype.shaderSource;
const few = `
highp float few(highp float v) { return uintBitsToFloat(floatBitsToUint(v) & 0xffffe000u); }
highp vec4 few(highp vec4 v) { return uintBitsToFloat(floatBitsToUint(v) & 0xffffe000u); }
highp uvec4 few(highp uvec4 v) { return v; }
highp uint few_bits(highp float v) { return floatBitsToUint(few(v)); }
highp uvec4 few_bits(highp vec4 v) { return floatBitsToUint(few(v)); }
#define floatBitsToUint few_bits
`;
WebGL2RenderingContext.prototype.shaderSource = function (shader, text) {
  const outputs = [...text.matchAll(/^layout\\(location = \\d\\) out .* (\\w+);/gm)].map(([, name]) => name);
  const main = `void main() { whole(); ${outputs.map((name) => `${name} = few(${name});`).join(' ')} }`;
  const changed = text.replace('\\n', few).replace('void main()', 'void whole()') + main;
  source.call(this, shader, outputs.length ? changed : text);
};"""
ROUNDING = """
// Claims to store 32-bit floats, but stores 16-bit floats.
const store = WebGL2RenderingContext.prototype.texStorage3D;
WebGL2RenderingContext.prototype.texStorage3D = function (target, levels, format, ...size) {
  return store.call(this, target, levels, format === this.RGBA32F ? this.RGBA16F : format, ...size);
};"""
LOSING = """
// Loses the context right before a draw for which CONDITION is true.
const draw = WebGL2RenderingContext.prototype.drawArrays, name = WebGL2RenderingContext.prototype.drawBuffers;
let targets = 0;
WebGL2RenderingContext.prototype.drawBuffers = function (list) { targets = list.length; name.call(this, list); };
WebGL2RenderingContext.prototype.drawArrays = function (...args) {
  if (CONDITION) {
    sessionStorage.lost = true;
    this.getExtension('WEBGL_lose_context').loseContext();
  }
  draw.apply(this, args);
};"""

BROKEN = """
// Breaks the shaders of products, and never delivers the weights.
const source = WebGL2RenderingContext.prototype.shaderSource, get = globalThis.fetch;
WebGL2RenderingContext.prototype.shaderSource = function (shader, text) {
  source.call(this, shader, text.includes('u_w;') ? text + 'broken' : text);
};
globalThis.fetch = (what, ...rest) =>
  String(what?.url ?? what).includes('weights-') ? new Promise(() => {}) : get(what, ...rest);"""


HASTE = """
// Shortens timers to a tenth: the waits before a file is fetched again and before the page suggests a reload.
const wait = globalThis.setTimeout;
globalThis.setTimeout = (call, ms, ...rest) => wait(call, ms / 10, ...rest);"""
DISPOSE = "Promise.race([glgpt.dispose(), new Promise((_, late) => setTimeout(() => late('not ended'), 9e3))])"
GREEDY = "glgpt.generate({prompt: 'To be', tokens: 8, temperature: 0}).then((r) => r.ids)"
DRAWABLE = "(({limits, storage}) => [limits.drawBuffers, storage])(glgpt.info())"


@pytest.fixture(scope="module")
def model_and_page(small: tuple[Path, Path]) -> tuple[Path, Path]:
    """Returns the folders of the small model and of its page."""
    return small


@pytest.mark.parametrize(
    ("init", "drawable"), [(LYING, [4, "float"]), (ROUNDING, [8, "uint"])], ids=["targets", "floats"]
)
def test_a_device_uses_what_drawing_has_shown(
    exported: Path, serve: Serve, browse: Browse, init: str, drawable: list[Any]
) -> None:
    """Fails if the page uses draw targets, or a precision, that the driver claims to have but does not have."""
    page = browse(serve(exported), init)
    page.evaluate("glgpt.ready")
    assert page.evaluate(DRAWABLE) == drawable
    assert page.evaluate("glgpt.parity().then((p) => p.pass)")


@pytest.mark.parametrize(
    ("condition", "said", "found"),
    [
        ("targets > 4", "Reload the page: it then draws to fewer textures at once.", 4),
        pytest.param("targets > 2 && !sessionStorage.lost", "Reload the page to try again.", 8, marks=pytest.mark.soak),
        pytest.param("!sessionStorage.lost", "Reload the page to try again.", 8, marks=pytest.mark.soak),
        ("this.isEnabled(this.BLEND)", "it then uses neither blending nor 16-bit floats.", 8),
    ],
    ids=["eight targets", "four targets, once", "one target, once", "blending"],
)
def test_a_context_lost_by_the_test_of_targets_is_survived_by_a_reload(
    exported: Path, serve: Serve, browse: Browse, condition: str, said: str, found: int
) -> None:
    """Fails if, after the test of targets lost the context, later visits fail or use fewer targets than they could."""
    page = browse(
        serve(exported), LOSING.replace("CONDITION", condition), provokes="CONTEXT_LOST_WEBGL|lost its graphics context"
    )
    page.get_by_role("alert").wait_for()
    assert said in page.get_by_role("alert").inner_text()
    page.reload()
    page.evaluate("glgpt.ready")
    assert page.evaluate(DRAWABLE) == [found, "float"] and len(page.evaluate(GREEDY)) == 8
    page.reload()
    page.evaluate("glgpt.ready")  # uses the stored result of the test
    assert page.evaluate(DRAWABLE) == [found, "float"]


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (NO_WEBGL, "no WebGL2"),
        (SMALL_TEXTURES, "at most 64 x 64"),
        (ONE_TARGET, "can draw to 1 texture at once and the model needs 4. Update the browser"),
        (MEDIUMP, "does not return the numbers that this page drew"),
        (BROKEN, "does not compile"),
    ],
    ids=["no WebGL2", "small textures", "one target", "mediump", "a broken shader before the weights"],
)
def test_a_device_that_cannot(exported: Path, serve: Serve, browse: Browse, init: str, message: str) -> None:
    page = browse(serve(exported), init)
    page.get_by_role("alert").wait_for()
    assert message in page.get_by_role("alert").inner_text()


def test_a_device_without_the_memory_says_so_before_weights_are_fetched(
    exported: Path, serve: Serve, browse: Browse
) -> None:
    """Fails if the page fetches weights although the device has too little memory for the model.

    The manifest claims a large model: for a small one, the page fetches weights before it has read the programs.
    """

    def enlarged(route: Any) -> None:
        manifest = json.loads((exported / "manifest.json").read_text())
        for shard in manifest["shards"]:
            shard["bytes"] *= 1000
        route.fulfill(json=manifest)

    page = browse("about:blank", NO_MEMORY)
    page.route("**/manifest.json", enlarged)
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(serve(exported))
    page.get_by_role("alert").wait_for()
    said = page.get_by_role("alert").inner_text()
    assert "enough memory for the" in said and "MB with --dtype q8" in said and "MB with --context 128." in said
    assert not [url for url in fetched if "weights" in url]


def test_complaints_are_heard(browse: Browse, complaints: list[str]) -> None:
    """Fails if the fixture misses a complaint: no test would then notice an error that the page only logs."""
    page = browse("about:blank", provokes="^(Error: )?provoked [a-e]$")
    page.evaluate(
        """() => {
          setTimeout(() => { throw new Error('provoked a'); });
          void Promise.reject(new Error('provoked b'));
          console.error('provoked c');
          console.warn('provoked d');
          console.assert(false, 'provoked e');
          console.log('nothing');
        }"""
    )
    page.wait_for_timeout(200)
    assert sorted(said[-1] for said in complaints) == list("abcde"), complaints


LOSE = """
globalThis.lose = async (device) => {
  const context = device.gl.getExtension('WEBGL_lose_context');
  context.loseContext();
  await new Promise((resolve) => setTimeout(resolve, 150));
  context.restoreContext();
  await device.restored;
};"""


@pytest.mark.soak
def test_a_context_lost_while_the_model_loads(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if a lost context interrupts a model's upload and the model is then used with incomplete textures."""
    first = """
    const upload = WebGL2RenderingContext.prototype.texSubImage3D;
    let lost = false;
    WebGL2RenderingContext.prototype.texSubImage3D = function (...args) {
      upload.apply(this, args);
      if (lost || args[6] < 64) return; // fewer rows than weights have
      lost = true;
      const context = this.getExtension('WEBGL_lose_context');
      context.loseContext();
      setTimeout(() => context.restoreContext(), 200);
    };"""
    page = browse(serve(exported), first + LOSE)
    page.evaluate("glgpt.ready")
    assert page.evaluate("glgpt.info().contexts") == 2
    expected = page.evaluate("glgpt.generate({prompt: 'To be', tokens: 8, temperature: 0}).then((r) => r.ids)")
    assert len(expected) == 8
    again = """async () => {
      const {model} = glgpt, upload = model.upload.bind(model);
      let count = 0;
      model.upload = async (...args) => {
        await upload(...args);
        if (++count === 2) await lose(model.device);
      };
      await lose(model.device);
      return (await glgpt.generate({prompt: 'To be', tokens: 8, temperature: 0})).ids;
    }"""
    assert page.evaluate(again) == expected
    assert page.evaluate("glgpt.parity().then((p) => p.pass)")


@pytest.mark.parametrize(
    ("call", "entry", "count"),
    [
        ("drawArrays", "prefill_", 9),
        ("drawArrays", "decode", 30),
        ("drawArrays", "sample", 2),
        ("readPixels", "", 3),
        ("fenceSync", "", 2),
        ("getBufferSubData", "", 2),
        ("endQuery", "", 40),
        ("getQueryParameter", "", 60),
        ("getQueryParameter", "", 71),
        ("uniform1i", "", 90),
    ],
    ids=["prefill", "decode", "sampling", "read", "fence", "copy", "query", "polling", "result", "bit"],
)
def test_a_context_lost_at_any_call_changes_no_token(opened: Any, call: str, entry: str, count: int) -> None:
    """Fails if a text changes when the context is lost right before a call: see `LOSE_AT`.

    Calls of queries read the tokens of a constrained text.
    """
    script = """async ([options, call, entry, count]) => {
      const {model} = glgpt, {player} = model, {gl} = model.device, {contexts} = glgpt.info();
      LOSE_AT
      model.cache.ids = [];
      const {ids} = await glgpt.generate(options);
      delete gl[call];
      return [ids, glgpt.info().contexts - contexts];
    }"""
    options = {"prompt": PROMPT, "tokens": 8, "topK": 20, "seed": 3}
    if "Query" in call or call == "uniform1i":
        options["constraint"] = {"regex": "[a-zA-Z ,.]*"}
    expected = opened.evaluate("(options) => glgpt.generate(options).then((r) => r.ids)", options)
    assert len(expected) == 8
    assert opened.evaluate(script.replace("LOSE_AT", LOSE_AT), [options, call, entry, count]) == [expected, 1]


LOADING = """
// Loses the context with the COUNT-th call of CALL, and restores it after some time.
const called = WebGL2RenderingContext.prototype.CALL;
let calls = 0;
WebGL2RenderingContext.prototype.CALL = function (...args) {
  if (++calls === COUNT) {
    const context = this.getExtension('WEBGL_lose_context');
    context.loseContext();
    setTimeout(() => context.restoreContext(), globalThis.restoreAfter ?? 200);
  }
  return called.apply(this, args);
};"""


@pytest.mark.parametrize(
    ("call", "count"),
    [
        pytest.param("texStorage3D", 10, marks=pytest.mark.soak),
        pytest.param("linkProgram", 12, marks=pytest.mark.soak),
        ("getUniformLocation", 8),
        pytest.param("framebufferTextureLayer", 60, marks=pytest.mark.soak),
    ],
    ids=["textures", "compiling", "linking", "framebuffers"],
)
def test_a_context_lost_before_the_first_token(
    exported: Path, serve: Serve, browse: Browse, opened: Any, call: str, count: int
) -> None:
    """Fails if a text differs because the context was lost while textures, shaders or framebuffers were created."""
    expected = opened.evaluate(GREEDY)
    page = browse(serve(exported), LOADING.replace("CALL", call).replace("COUNT", str(count)))
    page.evaluate("glgpt.ready")
    assert (page.evaluate("glgpt.info().contexts"), page.evaluate(GREEDY)) == (2, expected)


def test_a_loss_while_the_model_loads_is_said(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the page claims to compile shaders while it waits for a context that the browser does not restore."""
    never = "globalThis.restoreAfter = 1e9;"
    page = browse(serve(exported), HASTE + LOADING.replace("CALL", "linkProgram").replace("COUNT", "12") + never)
    page.get_by_text("lost the graphics context").wait_for()
    page.get_by_role("button", name="Reload the page").wait_for()


def test_a_loss_that_is_heard_late_changes_no_token(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if tokens change because the page reads zeros from a lost context before it is notified of the loss.

    In a lost context, each fence counts as passed, so the page believes that the results have been computed.
    """
    page = browse(serve(exported), LOSE)
    page.evaluate("glgpt.ready")
    expected = page.evaluate("glgpt.generate({prompt: 'To be', tokens: 48, temperature: 0}).then((r) => r.ids)")
    script = """async () => {
      const {device} = glgpt.model, {gl} = device, copy = gl.getBufferSubData.bind(gl), {contexts} = glgpt.info();
      let reads = 0, away = false;
      gl.getBufferSubData = (...args) => {
        if (++reads === 3) {
          away = true;
          setTimeout(() => void lose(device).then(() => (away = false)), 10);
        }
        if (!away) copy(...args);
      };
      const {ids} = await glgpt.generate({prompt: 'To be', tokens: 48, temperature: 0});
      delete gl.getBufferSubData;
      return [ids, reads > 3, glgpt.info().contexts - contexts];
    }"""
    assert page.evaluate(script) == [expected, True, 1]


def test_a_loss_is_said_and_can_be_stopped(exported: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(exported) + "#tokens=200", HASTE)
    page.evaluate("glgpt.ready")
    page.evaluate("() => { glgpt.model.device.gl.getExtension('WEBGL_lose_context').loseContext(); }")
    page.get_by_text("lost the graphics context").wait_for()
    page.get_by_role("button", name="Reload the page").wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Generate", exact=True).wait_for()


def test_a_lost_context_comes_back(exported: Path, serve: Serve, browse: Browse, desktop: LanguageModel) -> None:
    page = browse(serve(exported))
    page.evaluate("glgpt.ready")
    script = """async (prompt) => {
      const gl = glgpt.model.device.gl, lose = gl.getExtension('WEBGL_lose_context');
      let n = 0;
      const run = glgpt.generate({prompt, tokens: 64, temperature: 0, onToken: () => {
        if (++n === 20) { lose.loseContext(); setTimeout(() => lose.restoreContext(), 200); }
      }});
      return [(await run).ids, glgpt.info().contexts];
    }"""
    ids, contexts = page.evaluate(script, PROMPT)
    assert contexts == 2
    assert ids == list(desktop.generate_ids(PROMPT, 64, temperature=0)) and len(set(ids)) > 4


@pytest.mark.soak
def test_a_text_survives_the_end_of_the_gpu_process(
    exported: Path, serve: Serve, browse: Browse, desktop: LanguageModel, tmp_path: Path
) -> None:
    page = browse(serve(exported), own=True)
    page.evaluate("glgpt.ready")
    page.evaluate("globalThis.count = 0")
    ask = "{prompt: 'To be', tokens: 200, temperature: 0, onToken: () => globalThis.count++}"
    page.evaluate(f"void (globalThis.text = glgpt.generate({ask}))")
    for kill in (1, 2, 3):
        page.wait_for_function(f"globalThis.count >= {10 * kill}")
        end_gpu_process(tmp_path)
        page.wait_for_function(f"glgpt.info().contexts === {kill + 1}")
    ids = page.evaluate("globalThis.text.then((r) => r.ids)")
    assert ids == list(desktop.generate_ids("To be", 200, temperature=0))


def end_gpu_process(profiles: Path) -> None:
    """Kills the GPU process of the browser whose profile is in this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            line = (process / "cmdline").read_bytes().decode(errors="replace")
            if "--type=gpu-process" in line and str(profiles) in line:
                os.kill(int(process.name), signal.SIGKILL)


def test_what_a_loss_cut_short_begins_anew(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the parity test, or drawing a view, does not start again after a lost context interrupted it."""
    page = browse(serve(exported))
    page.evaluate("glgpt.ready")
    page.wait_for_function("!document.querySelector('.text-caret')")
    script = """async () => {
      const lose = glgpt.model.device.gl.getExtension('WEBGL_lose_context');
      const run = glgpt.parity();
      await new Promise((resolve) => setTimeout(resolve, 30));
      lose.loseContext();
      await new Promise((resolve) => setTimeout(resolve, 100));
      lose.restoreContext();
      return (await run).pass;
    }"""
    assert page.evaluate(script)
    for view, drawn in (("Textures", "canvas[aria-label^='Values of']"), ("Blocks", ".blocks-lens td button")):
        page.get_by_role("navigation", name="Views").get_by_role("button", name=view).click()
        page.evaluate(
            """async () => {
              const lose = glgpt.model.device.gl.getExtension('WEBGL_lose_context');
              lose.loseContext();
              await new Promise((resolve) => setTimeout(resolve, 100));
              lose.restoreContext();
            }"""
        )
        page.locator(drawn).first.wait_for()
        page.wait_for_function("!document.body.innerText.includes('Drawing…')")
    assert page.evaluate("glgpt.info().contexts") == 4


# Waits until the service worker controls the page and has seen the files that it would cache.
WATCHED = """async () => {
  const {serviceWorker} = navigator;
  await serviceWorker.ready;
  if (!serviceWorker.controller) {
    await new Promise((next) => serviceWorker.addEventListener('controllerchange', next, {once: true}));
  }
  for (const url of ['./', './manifest.json']) await (await fetch(url)).blob();
}"""


@pytest.mark.soak
def test_a_full_disk_keeps_nothing_and_harms_nothing(exported: Path, serve: Serve, browse: Browse) -> None:
    address = serve(exported)
    page = browse("about:blank#", provokes="Failed to load resource|QuotaExceeded", keeps=True)
    cdp = page.context.new_cdp_session(page)
    origin = "/".join(address.split("/")[:3])
    for size in (1000, 200_000):
        cdp.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": size})
        for _ in range(2):
            page.goto("about:blank")
            page.goto(f"{address}#tokens=2")
            page.evaluate("glgpt.ready")
            page.evaluate(WATCHED)


def damaged(exported: Path, tmp_path: Path, change: Callable[[Path], None]) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    change(copy)
    return copy


def test_a_corrupt_shard_is_named(exported: Path, serve: Serve, browse: Browse, tmp_path: Path) -> None:
    def flip(folder: Path) -> None:
        data = bytearray((folder / "weights-01.bin").read_bytes())
        data[1000] ^= 1
        (folder / "weights-01.bin").write_bytes(data)

    page = browse(serve(damaged(exported, tmp_path, flip)), HASTE)
    page.get_by_role("alert").wait_for()
    text = page.get_by_role("alert").inner_text()
    assert "weights-01.bin" in text and "SHA-256" in text and "3 times" in text


def test_a_shard_damaged_once_is_fetched_again(exported: Path, serve: Serve, browse: Browse) -> None:
    page = browse("about:blank", HASTE)
    served = []

    def answer(route: Any) -> None:
        served.append(route.request.url)
        if len(served) == 1:
            route.fulfill(status=200, body=b"\0" * 100)
        else:
            route.continue_()

    page.route("**/weights-02.bin", answer)
    page.goto(serve(exported))
    page.evaluate("glgpt.ready")
    assert len(served) == 2


def test_a_missing_shard_is_named(exported: Path, serve: Serve, browse: Browse, tmp_path: Path) -> None:
    folder = damaged(exported, tmp_path, lambda folder: (folder / "weights-00.bin").unlink())
    page = browse(serve(folder), HASTE, provokes="status of 404")
    page.get_by_role("alert").wait_for()
    assert "weights-00.bin" in page.get_by_role("alert").inner_text()


def set_in(manifest: dict[str, Any], value: Any, *path: Any) -> dict[str, Any]:
    """Returns a manifest with the value at `path` replaced."""
    whole = part = copy.deepcopy(manifest)
    *most, last = path
    for key in most:
        part = part[key]
    part[last] = value
    return whole


def test_damaged_documents_are_said(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the error for an invalid manifest or tokenizer does not say where the fault is or what to do."""
    manifest = json.loads((exported / "manifest.json").read_text())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"manifest.json": set_in(manifest, value, *path)}, said)
        for path, value, said in (
            (("config", "n_layer"), 10**6, "manifest.json is damaged: #/config/n_layer"),
            (("config", "n_layer"), 1000, "it has 1000 blocks and names"),
            (("config", "n_head"), 10**6, "manifest.json is damaged: #/config/n_head"),
            (("shards", 0, "bytes"), 10**13, "manifest.json is damaged: #/shards/0/bytes"),
            (("recordings",), [], "manifest.json is damaged: #/recordings"),
            (("files",), {}, "is not in the manifest"),
            (("schema",), manifest["schema"] + 1, "has schema version"),
        )
    ]
    cases += [
        (with_tokenizer(exported, **changed), said)
        for changed, said in (
            ({"normalizer": {"type": "Precompiled"}}, "tokenizer.json is damaged: #/normalizer"),
            ({"model": {"vocab": {"a": -1}, "merges": []}}, "its vocabulary does not map tokens to ids"),
            ({"model": {"vocab": {"a": 1}, "merges": ["a b"]}}, "needs a token that the vocabulary lacks"),
        )
    ]
    page, address = browse("about:blank#"), serve(exported)
    for files, said in cases:
        page.unroute_all()
        for name, document in files.items():
            page.route(f"**/{name}", answering(document))
        page.goto(address)
        alert = page.get_by_role("alert")
        alert.wait_for()
        assert said in alert.inner_text() and "Export the model again" in alert.inner_text(), said
        alert.get_by_role("button", name="Try again").wait_for()


COUNTED = """
globalThis.created = 0;
for (const name of ['createTexture', 'createShader']) {
  const create = WebGL2RenderingContext.prototype[name];
  WebGL2RenderingContext.prototype[name] = function (...args) { created++; return create.apply(this, args); };
}"""


@pytest.mark.parametrize("part", mostly_soak(["tokenizer", "capture", "recorded"], ("tokenizer",)))
def test_a_failed_load_leaves_nothing_behind(exported: Path, serve: Serve, browse: Browse, part: str) -> None:
    """Fails if the page fetches weights, compiles shaders or keeps a worker for a model that cannot be used."""
    manifest = json.loads((exported / "manifest.json").read_text())
    manifest["chat_template"] = {"source": "{{ messages }}", "named": {}, "special": {}}
    manifest["recorded"] = manifest["recorded"] or "recorded.json"
    broken = [manifest[part]] if part in manifest else [each[part] for each in manifest["recordings"]]
    data = b"{}"
    page = browse("about:blank#", HASTE + COUNTED)
    for name in broken:
        if part != "capture":  # loading only checks the SHA-256 of `capture`, so that must stay wrong
            manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        page.route(f"**/{name}", lambda route: route.fulfill(body=data))
    held: list[Any] = []
    fetched: list[str] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/manifest.json", answering(manifest))
    page.route("**/weights-00.bin", hold)
    page.on("request", lambda request: fetched.append(request.url.rpartition("/")[2]))
    page.goto(serve(exported))
    page.get_by_role("alert").wait_for()
    said = page.get_by_role("alert").inner_text()
    assert any(name in said for name in broken)
    created = page.evaluate("created")
    for route in held:
        with contextlib.suppress(Exception):  # the page may have ended the request
            route.continue_()
    page.wait_for_timeout(500)
    assert [name for name in fetched if name.startswith("weights") and name != "weights-00.bin"] == []
    assert page.evaluate("[glgpt.contextLost.value, created]") == [True, created]
    assert page.workers == []  # a damaged tokenizer fails before a worker starts


@pytest.mark.parametrize(("file", "begun"), [("weights-00.bin", "progress.value.shaders"), ("manifest.json", "device")])
def test_a_load_that_is_disposed_of_ends(exported: Path, serve: Serve, browse: Browse, file: str, begun: str) -> None:
    page = browse("about:blank#")
    page.route(f"**/{file}", lambda _: None)  # is never answered
    page.goto(serve(exported))
    page.wait_for_function(f"globalThis.glgpt?.{begun}")
    page.evaluate(DISPOSE)
    assert page.evaluate("glgpt.device.value.lost") and page.workers == []
    assert "disposed of" in page.get_by_role("alert").inner_text()


def test_a_call_that_waits_for_a_lost_context_ends_with_the_object(
    exported: Path, serve: Serve, browse: Browse
) -> None:
    page = browse(serve(exported), provokes="disposed of")  # the views report the released model
    page.evaluate("glgpt.ready")
    page.evaluate("""() => {
      glgpt.model.device.gl.getExtension('WEBGL_lose_context').loseContext();
      globalThis.waiting = glgpt.generate({prompt: 'To be', tokens: 4});
    }""")
    page.evaluate(DISPOSE)
    assert page.evaluate("waiting.then((g) => g.ids)") == []


def test_a_text_that_a_lost_context_interrupts_ends_with_the_object(
    exported: Path, serve: Serve, browse: Browse
) -> None:
    page = browse(serve(exported), provokes="disposed of")
    page.evaluate("glgpt.ready")
    ids, stopped, texts = page.evaluate(f"""async () => {{
      const lose = (tokens) => tokens === 2 && glgpt.model.device.gl.getExtension('WEBGL_lose_context').loseContext();
      let count = 0;
      const text = glgpt.generate({{prompt: 'To be', tokens: 40, onToken: () => lose(++count)}});
      const texts = glgpt.continuations({{prompt: 'To be', tokens: 4}});
      for (const call of [text, texts]) call.catch(() => {{}});
      while (!glgpt.model.device.lost) await new Promise((later) => setTimeout(later, 10));
      await {DISPOSE};
      return [(await text).ids.length, (await text).stopped, (await texts).map((each) => each.stopped)];
    }}""")
    assert ids >= 2 and stopped == "aborted" and set(texts) == {"aborted"}


def test_changes_that_cannot_be_made_again_are_off(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if, after a lost context, texts come from the unchanged model while the page lists changes."""
    page = browse(serve(exported), provokes="provoked")
    said: list[str] = []
    # If a view draws before the text is generated, the view logs the error.
    page.on("console", lambda message: said.append(message.text))
    page.evaluate("glgpt.ready")
    error, parts, count = page.evaluate("""async () => {
      await glgpt.intervene(['h.0.mlp']);
      const {interventions, device} = glgpt.model, lose = device.gl.getExtension('WEBGL_lose_context');
      interventions.open = () => Promise.reject(new Error('provoked'));
      lose.loseContext();
      setTimeout(() => lose.restoreContext(), 200);
      const text = () => glgpt.generate({prompt: 'To be', tokens: 4});
      const error = await text().then(() => '', (error) => error.message);
      return [error, interventions.parts, (await text()).ids.length];
    }""")
    assert (parts, count) == ([], 4)
    assert any("h.0.mlp could not be changed again: provoked" in line for line in (error, *said))


SECOND = """async () => {
      const {manifest, recording, tokenizer, programs: {generate}} = own;
      const fill = () => Promise.reject(new Error('provoked'));
      const weights = {own: true, shared: () => new Map(), version: () => '', fill};
      return own.beside({manifest, recording, tokenizer, weights, programs: {generate, capture: generate}});
    }"""
CHANGED = """async () => {
      const full = Object.getOwnPropertyDescriptor(own.device.constructor.prototype, 'full');
      Object.defineProperty(own.device, 'full', {get: () => full.get.call(own.device) || true, configurable: true});
      try {
        await glgpt.intervene(['h.0.mlp']);
      } finally {
        delete own.device.full;
      }
    }"""


@pytest.mark.parametrize(
    ("load", "said"), [(SECOND, "provoked"), (CHANGED, "enough memory for the working")], ids=["second", "changed"]
)
def test_a_program_that_cannot_be_loaded_leaves_no_texture(opened: Any, load: str, said: str) -> None:
    script = """async () => {
      const {own} = glgpt, {gl} = own.device;
      const kept = new Set(), made = gl.createTexture.bind(gl), deleted = gl.deleteTexture.bind(gl);
      gl.createTexture = () => { const texture = made(); kept.add(texture); return texture; };
      gl.deleteTexture = (texture) => { kept.delete(texture); deleted(texture); };
      const said = await (LOAD)().then(() => 'loaded', (error) => error.message);
      await new Promise((done) => setTimeout(done, 300));
      delete gl.createTexture;
      delete gl.deleteTexture;
      return [said, kept.size];
    }"""
    message, kept = opened.evaluate(script.replace("LOAD", load))
    assert said in message and kept == 0


def answering(document: Any) -> Callable[[Any], None]:
    return lambda route: route.fulfill(body=json.dumps(document))


def with_tokenizer(exported: Path, **changed: Any) -> dict[str, Any]:
    """Returns the export's tokenizer with these fields changed, and the manifest with the new tokenizer's hash."""
    manifest = json.loads((exported / "manifest.json").read_text())
    tokenizer = json.loads((exported / "tokenizer.json").read_text()) | changed
    data = json.dumps(tokenizer).encode()
    manifest["files"]["tokenizer.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {"manifest.json": manifest, "tokenizer.json": tokenizer}


def test_an_error_after_the_model_is_there_is_said(exported: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(exported), "history.replaceState = () => { throw new Error('provoked'); };")
    page.get_by_role("alert").wait_for()
    assert "provoked. This is an unexpected error: reload the page" in page.get_by_role("alert").inner_text()


def test_a_character_that_the_vocabulary_lacks_stops_the_text_alone(
    exported: Path, serve: Serve, browse: Browse
) -> None:
    page = browse("about:blank#")
    for name, document in with_tokenizer(exported, model={"vocab": {}, "merges": []}).items():
        page.route(f"**/{name}", answering(document))
    page.goto(serve(exported))
    page.get_by_text("The model's vocabulary lacks a character of this text.").first.wait_for()
    assert page.evaluate("glgpt.generate({ids: [1, 2], tokens: 2, eos: false}).then((r) => r.ids.length)") == 2


class Liar(SimpleHTTPRequestHandler):
    """Serves a folder, but sends 64 MiB of zeros for each file in `lies`.

    `lies` maps the file's name to the Content-Length that is sent. None: no Content-Length is sent.
    """

    lies: ClassVar[dict[str, int | None]] = {}

    def do_GET(self) -> None:
        name = self.path.split("?")[0].rpartition("/")[2]
        if name not in self.lies:
            super().do_GET()
            return
        length = self.lies[name]
        self.send_response(200)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        with contextlib.suppress(OSError):  # the page closes the connection
            for _ in range(64):
                self.wfile.write(bytes(1 << 20))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "length", "said"),
    [
        ("manifest.json", 10**13, "manifest.json is announced with 10000000000000 bytes instead of at most"),
        ("weights-00.bin", 10**13, "weights-00.bin is announced with 10000000000000 bytes instead of at most 262144"),
        ("weights-00.bin", None, "weights-00.bin has more than 262144"),
    ],
)
def test_a_server_that_lies_about_lengths_is_said(
    exported: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch, name: str, length: int | None, said: str
) -> None:
    monkeypatch.setattr(Liar, "lies", {name: length})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Liar, directory=str(exported)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        page = browse(address, HASTE, provokes="ERR_CONTENT_LENGTH_MISMATCH|Failed to load")
        page.get_by_role("alert").wait_for()
        text = page.get_by_role("alert").inner_text()
        assert said in text and "export the model again" in text
    finally:
        server.shutdown()
        server.server_close()


def test_parity_fails_where_numbers_differ(exported: Path, serve: Serve, browse: Browse, tmp_path: Path) -> None:
    def distort(folder: Path) -> None:
        reference = json.loads((folder / "reference.json").read_text())
        name = "h.2.attn.z"
        values = np.frombuffer(base64.b64decode(reference["activations"][name]), np.float32).copy()
        values[5] += 0.01
        reference["activations"][name] = base64.b64encode(values.tobytes()).decode()
        data = json.dumps(reference).encode()
        (folder / "reference.json").write_bytes(data)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["reference.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps(manifest))

    page = browse(serve(damaged(exported, tmp_path, distort)))
    page.evaluate("glgpt.ready")
    result = page.evaluate("glgpt.parity()")
    assert not result["pass"] and result["firstApart"]["name"] == "h.2.attn.z"


def test_logits_that_are_not_finite_are_refused_by_every_path(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the page generates from a row of logits that are not finite."""
    page = browse(serve(exported), provokes="drawing: .*not finite")
    page.evaluate("glgpt.ready")
    script = """async () => {
      const {player} = glgpt.model, {width} = player.spec("wpe.weight"), said = [];
      const row = new Uint8Array(new Float32Array(4 * width).map((_, i) => (i % 2 ? 1e25 : -1e25)).buffer);
      player.write("wpe.weight", 0, 9, 1, row);
      glgpt.model.cache.ids = [];
      const how = {prompt: "To be", tokens: 12, seed: 3};
      for (const more of [{temperature: 0}, {}, {topP: 0.9}, {alternatives: 3}, {repetitionPenalty: 1.1}]) {
        let tokens = 0;
        const run = glgpt.generate({...how, ...more, onToken: () => tokens++});
        said.push(await run.then(() => "answered", (error) => `${tokens} ${error.message}`));
      }
      const ids = Array.from({length: 8}, (_, i) => i);
      for (const done of [glgpt.continuations(how), glgpt.logits(ids)]) {
        said.push(await done.then(() => "answered", (error) => error.message));
      }
      return [10 - glgpt.model.tokenizer.prompt("To be").length, ...said];
    }"""
    before, *told, together, logits = page.evaluate(script)
    assert before > 2 and all(text.startswith(f"{before} ") and "not finite" in text for text in told), told
    assert "not finite" in together and "not finite" in logits
