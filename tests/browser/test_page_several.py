"""Tests several continuations of a prompt: each equals the text of its seed, in the page and on the desktop."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from browser import writing

from glgpt.inference.model import LanguageModel

pytestmark = pytest.mark.slow

PROMPT = "ROMEO:\nBut soft"
SAMPLED = {"temperature": 0.8, "topK": 40, "topP": 0.9}

CONTINUATIONS = """async (options) => {
  const texts = [];
  const made = await glgpt.continuations({...options, onTexts: (now) => texts.push(now.map(({ids}) => ids.length))});
  return {made, texts, memory: glgpt.model.memory().several};
}"""

# Keeps guessing (speculative decoding) active. The page pauses guessing if a step of four tokens takes four times as
# long as a step of one token, as on software OpenGL, and if tokens are so fast that the page issues several at once.
NEVER_PAUSES = """() => {
  const {batch, generator} = glgpt.model, own = batch.speculation.bind(batch);
  Object.defineProperty(generator.sizes, "tokens", {value: 1, configurable: true});
  batch.speculation = async () => {
    const speculation = await own();
    speculation.guessing.checkedStep = () => {};
    return speculation;
  };
}"""


def test_each_is_the_text_of_its_seed(opened: Any, desktop: LanguageModel) -> None:
    page = opened
    options = {"prompt": PROMPT, "tokens": 24, "seed": 11, **SAMPLED}
    found = page.evaluate(CONTINUATIONS, options)
    assert [text["seed"] for text in found["made"]] == [11, 12, 13, 14] and found["memory"] > 0
    assert found["texts"] == [[n] * 4 for n in range(1, 25)]
    runs = desktop.generate_batch([PROMPT] * 4, 24, seeds=[11, 12, 13, 14], temperature=0.8, top_k=40, top_p=0.9)
    expected = ["".join(run) for run in runs]
    assert [text["text"] for text in found["made"]] == expected
    for text in found["made"]:
        assert page.evaluate("(o) => glgpt.generate(o)", options | {"seed": text["seed"]})["ids"] == text["ids"]
    # With a repetition penalty, the page samples without the device. A stop text ends only the text that contains it.
    # The end of the context ends all four texts.
    options |= {"repetitionPenalty": 1.3, "stop": "\n"}
    found = page.evaluate(CONTINUATIONS, options)
    for text in found["made"]:
        assert page.evaluate("(o) => glgpt.generate(o)", options | {"seed": text["seed"]})["text"] == text["text"]
        assert text["stopped"] == ("tokens" if len(text["ids"]) == 24 else "text")
    long = page.evaluate("glgpt.encode('And then he said it all again. '.repeat(40)).slice(0, 250)")
    found = page.evaluate(CONTINUATIONS, {"ids": long, "tokens": 24, "seed": 3})
    assert [len(text["ids"]) for text in found["made"]] == [7] * 4  # at positions 250 to 255, and the next one
    assert {text["stopped"] for text in found["made"]} == {"context"}
    found = page.evaluate(CONTINUATIONS, {"ids": (long * 2)[:256], "tokens": 3, "seed": 3})
    assert [len(text["ids"]) for text in found["made"]] == [1] * 4
    wrong = "(o) => glgpt.continuations(o).catch((e) => e.message)"
    assert page.evaluate(wrong, {"prompt": "", "tokens": 1}) == "The prompt is empty; give at least one character."
    assert page.evaluate(wrong, {"prompt": "a", "tokens": 1.5}).startswith("tokens is 1.5;")
    page.evaluate("glgpt.borrow(async (model) => model.batch.close())")
    assert page.evaluate("glgpt.model.memory().several") == 0
    stop = """async (options) => {
      const stop = new AbortController(), onTexts = ([text]) => text.ids.length === 4 && stop.abort();
      return glgpt.continuations({...options, onTexts, signal: stop.signal});
    }"""
    stopped = page.evaluate(stop, {"prompt": PROMPT, "tokens": 50})
    assert [(len(text["ids"]), text["stopped"]) for text in stopped] == [(4, "aborted")] * 4


def test_the_view_shows_them_and_reads_one(opened: Any) -> None:
    with writing(opened, "prompt=To+be&tokens=12&seed=5", 12) as page:
        shows_them_and_reads_one(page)


def shows_them_and_reads_one(page: Any) -> None:
    button = page.get_by_role("button", name="Four continuations side by side")
    button.click()
    panel = page.get_by_role("region", name="Continuations side by side")
    page.wait_for_function("/in total/.test(document.querySelector('.text-several header').innerText)")
    texts = panel.locator("li p").all_inner_texts()
    assert len({*texts}) == 4 and all(texts)
    page.get_by_label("Length").fill("3")  # inspecting a text uses the settings of its request, not this length
    panel.get_by_role("button", name="Inspect this one, seed 7").click()
    page.wait_for_function(
        f"document.querySelector('.text-written .text-stream').innerText.includes({json.dumps(texts[2].split()[-1])})"
    )
    page.wait_for_function("!document.querySelector('.text-caret') && /tokens=12&.*seed=7/.test(location.hash)")
    written = page.evaluate(
        "[...document.querySelectorAll('.text-token:not(.text-given)')].map((e) => e.innerText).join('')"
    )
    assert "".join(written.replace("⏎", "").split()) == "".join(texts[2].split())
    page.evaluate("glgpt.intervene(['h.0.mlp'])")  # the recording for several texts supports no interventions
    said = page.evaluate("glgpt.continuations({prompt: 'To be', tokens: 2}).catch((e) => e.message)")
    assert said == "Parts of the model are changed; restore them to write several texts."
    page.evaluate("glgpt.intervene([])")
    panel.get_by_role("button", name="Close").click()
    assert panel.count() == 0


def test_a_lost_context_begins_them_anew(opened: Any) -> None:
    page = opened
    options = {"prompt": PROMPT, "tokens": 12, "seed": 2}
    whole = page.evaluate(CONTINUATIONS, options)
    lose = """async (options) => {
      const lost = glgpt.model.device.gl.getExtension('WEBGL_lose_context');
      let taken = false;
      const onTexts = ([text]) => {
        if (taken || text.ids.length < 5) return;
        taken = true;
        lost.loseContext();
        setTimeout(() => lost.restoreContext(), 100);
      };
      return {made: await glgpt.continuations({...options, onTexts}), taken};
    }"""
    found = page.evaluate(lose, options)
    assert found["taken"] and found["made"] == whole["made"]


def test_guessed_tokens_leave_the_text_as_it_is(opened: Any) -> None:
    """Fails if guessing changes a text, no guess is accepted, or the caches lack rows of accepted tokens."""
    page = opened
    page.evaluate(NEVER_PAUSES)
    ids = page.evaluate("glgpt.encode('And then he said it all again. '.repeat(9))")
    accepted = 0
    for how in ({"temperature": 0}, {"temperature": 0.7, "topP": 0.9, "seed": 2, "alternatives": 2}):
        options = {"ids": ids[:110], "tokens": 40, **how}
        plain = page.evaluate("(o) => glgpt.generate(o)", options)
        found = page.evaluate("(o) => glgpt.generate({...o, speculate: true})", options)
        assert found["ids"] == plain["ids"] and "speculation" not in plain
        stats = found["speculation"]
        assert stats["guessedTokens"] >= stats["checkedSteps"] > 0
        accepted += stats["acceptedTokens"]
    assert accepted > 0
    held = page.evaluate("glgpt.model.cache.ids.length")
    shown = "glgpt.activation('h.2.attn.pattern').then(({data}) => Array.from(data.slice(-60)))"
    again = "glgpt.borrow(async (model) => model.cache.clear()).then(() => " + shown + ")"
    assert held > 110 and page.evaluate(shown) == pytest.approx(page.evaluate(again), abs=1e-4)
    refused = "glgpt.continuations({prompt: 'a', speculate: true}).catch((e) => e.message)"
    assert "no option speculate" in page.evaluate(refused)
    page.evaluate("() => { delete glgpt.model.generator.sizes.tokens; delete glgpt.model.batch.speculation; }")


def test_forced_tokens_leave_the_text_as_it_is(opened: Any) -> None:
    """Fails if a text changes when the page guesses the tokens that a constraint forces, as through a wrong mask.

    After a wrong guess, the constraint's matcher must forget the guess.
    """
    page = opened
    page.evaluate(NEVER_PAUSES)
    # Loads the program that checks guesses, which the page would otherwise load later, during the text.
    page.evaluate("glgpt.borrow((model) => model.batch.speculation().then(() => null))")
    fields = {"kingdom": {"type": "string", "maxLength": 9}, "battles": {"enum": ["won", "worse", 12]}}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    accepted = wrong = 0
    sampled = {"temperature": 1.6, "topK": 40, "topP": 0.9}
    ways: list[dict[str, Any]] = [{"temperature": 0}, {**sampled, "seed": 3, "alternatives": 2}, {**sampled, "seed": 5}]
    for how in ways:
        options = {"prompt": "A king: ", "tokens": 60, "constraint": {"json_schema": schema}, **how}
        plain = page.evaluate("(o) => glgpt.generate({...o, speculate: false})", options)
        found = page.evaluate("(o) => glgpt.generate({...o, speculate: true})", options)
        assert found["ids"] == plain["ids"] and found["stopped"] == "eos" and "speculation" not in plain
        jsonschema.validate(json.loads(found["text"]), schema)
        accepted += found["speculation"]["acceptedTokens"]
        wrong += found["speculation"]["guessedTokens"] - found["speculation"]["acceptedTokens"]
    assert accepted > 10 and wrong > 0
    endless = {"json_schema": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}}  # the forced text has no end
    text = "(constraint) => glgpt.generate({prompt: 'a', tokens: 4, constraint}).then((g) => g.text)"
    assert page.evaluate(text, endless).startswith("[[[[")
    page.evaluate("() => { delete glgpt.model.generator.sizes.tokens; delete glgpt.model.batch.speculation; }")


def test_work_issued_ahead_of_a_read_leaves_a_constrained_text_as_it_is(opened: Any) -> None:
    """Fails if a constrained text changes when the page decodes tokens before it has read them."""
    page = opened
    page.evaluate("""() => {
      const {cache, generator, sampling} = glgpt.model, own = sampling.chooseAllowed;
      const sizes = Object.getPrototypeOf(generator.sizes);
      const {groups} = Object.getOwnPropertyDescriptors(sizes);
      const set = (groups) => Object.defineProperties(sizes, {groups});
      let chosen, decoded, early;
      cache.decode = (...args) => (decoded++, Object.getPrototypeOf(cache).decode.apply(cache, args));
      window.ahead = async (options, count, undecided = Infinity) => {
        set({get: () => count, configurable: true});
        chosen = decoded = early = 0;
        sampling.chooseAllowed = async (...args) => {
          const before = decoded, lost = ++chosen % undecided === 0;
          const token = await own.apply(sampling, args);
          if (decoded > before) early++;
          return lost ? null : token;
        };
        const {ids, text, stopped} = await glgpt.generate(options);
        return {ids, text, stopped, chosen, early};
      };
      window.ahead.end = () => (set(groups), delete sampling.chooseAllowed, delete cache.decode);
    }""")
    schema = {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 2, "maxItems": 2}
    options = {"prompt": "Titles: ", "tokens": 120, "constraint": {"json_schema": schema}, "speculate": False}
    sampled = {"temperature": 1.3, "topK": 40, "topP": 0.9}
    for how in ({"temperature": 0}, {**sampled, "seed": 3, "alternatives": 2}, {**sampled, "seed": 4}):
        plain = page.evaluate("(o) => ahead(o, 1)", options | how)
        assert plain["chosen"] in (len(plain["ids"]), len(plain["ids"]) + 1)  # one more: the end of the text
        assert plain["early"] == 0
        found = page.evaluate("(o) => ahead(o, 2)", options | how)
        assert found | {"early": 0} == plain
        assert (found["early"] > 20) == ("alternatives" not in how)
        # Every seventh choice counts as undecided: the page chooses instead of the device. Only greedy choices agree.
        if how == {"temperature": 0}:
            found = page.evaluate("(o) => ahead(o, 2, 7)", options | how)
            assert found | {"early": 0} == plain
    ids = "glgpt.generate({prompt: 'A king', tokens: 8, seed: 1}).then(({ids}) => ids)"
    after = page.evaluate(ids)
    page.evaluate("ahead.end()")
    assert page.evaluate(f"glgpt.borrow(async (model) => model.cache.clear()).then(() => {ids})") == after


def test_tokens_read_through_queries_equal_those_read_with_a_fence(opened: Any) -> None:
    """Fails if queries give another token than the texel has, or if a page trusts a driver whose queries are wrong."""
    page = opened
    found = page.evaluate("""async () => {
      const {device, player, sampling: {masked}} = glgpt.model, {gl} = device;
      const constraint = {json_schema: {type: "array", items: {type: "integer"}, minItems: 6}};
      const options = {prompt: "Counts: ", tokens: 30, seed: 2, topK: 40, constraint, speculate: false};
      let fences = 0;
      gl.fenceSync = (...args) => (fences++, WebGL2RenderingContext.prototype.fenceSync.apply(gl, args));
      const text = async () => {
        const before = fences, {text, ids} = await glgpt.generate(options);
        return [text, masked.bits !== null, fences - before >= ids.length];
      };
      const plain = await text();
      const [id, , ...flags] = await player.read("token");
      const read = await masked.bits.read(player.texture("token"));
      const texels = [];
      for (const texel of [[0xfffff, 5, 0, 0], [1 << 17, -1, 1, 1], [0, 0, -1, 0.5]]) {
        const row = new Float32Array(4 * player.spec("token").width);
        row.set(texel);
        player.write("token", 0, 0, 1, new Uint8Array(row.buffer));
        texels.push(await masked.bits.read(player.texture("token")));
      }
      masked.close();
      gl.getQueryParameter = (query, name) => name === gl.QUERY_RESULT_AVAILABLE;
      const wrong = await text();
      delete gl.getQueryParameter;
      masked.close();
      const again = await text();
      delete gl.fenceSync;
      return {plain, wrong, again, equal: `${[id, 0, ...flags.slice(0, 2)]}` === `${read}`, texels};
    }""")
    text, *used = found["plain"]
    assert used == [True, False] and found["equal"] and len(text) > 12
    assert found["texels"] == [[0xFFFFF, 0, 0, 0], [1 << 17, 0, 1, 1], [0, 0, 0, 1]]
    assert found["wrong"] == [text, False, True]
    assert found["again"] == [text, True, False]
