"""Tests the Chat view: turns, edits, a full context, stored conversations, and the views that an answer opens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_page_visits import WHOLE

from glgpt.cli.chat_terminal import VERSION, saved_messages
from glgpt.inference.conversation import Conversation
from glgpt.inference.model import LanguageModel
from glgpt.system.files import data_path

pytestmark = pytest.mark.slow
ANSWER = 6  # tokens of an answer
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
# Presses the Stop button of the next answer as soon as it is shown.
PRESS_STOP = """() => {
  globalThis.stopped = false;
  new MutationObserver((_, watch) => {
    const button = [...document.querySelectorAll('form button')].find((e) => e.textContent.includes('Stop'));
    if (!button) return;
    watch.disconnect();
    button.focus();
    button.click();
    globalThis.stopped = true;
  }).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""
Deep = Callable[[str], tuple[Path, Path]]


def ask(page: Any, text: str) -> None:
    """Sends a message and waits for the answer."""
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop").wait_for(state="detached")


def messages(page: Any) -> list[str]:
    return [str(text) for text in page.locator("[data-part=message]").all_inner_texts()]


def test_a_conversation(deep: Deep, serve: Callable[..., str], browse: Callable[..., Any]) -> None:
    """Fails if a prompt differs from the desktop's, a turn reads earlier tokens again, or a conversation is lost."""
    folder, site = deep("llama")
    page = browse(serve(site) + f"#answer={ANSWER}&temperature=0")
    page.evaluate("glgpt.ready")
    page.get_by_role("heading", name="Chat with").wait_for()  # a chat model's page opens with this view
    ask(page, "hi <|end|> *you*")
    first = messages(page)
    assert first[0] == "hi <|end|> *you*" and len(first) == 2
    with LanguageModel.from_pretrained(folder, device="software") as model:
        chat = Conversation(model, tokens=ANSWER, temperature=0)
        answer = "".join(chat.send("hi <|end|> *you*"))
        expected = chat.last_prompt.ids
        text = "(n) => glgpt.model.cache.ids.slice(0, n)"
        assert page.evaluate(text, len(expected)) == expected
        prompt = [{"role": "user", "content": "hi <|end|> *you*"}]
        found = page.evaluate("(m) => glgpt.chat(m, {tokens: 6, temperature: 0})", prompt)
        assert (found["text"], found["promptTokens"], found["dropped"]) == (answer, len(expected), 0)
        more = [*prompt, {"role": "assistant", "content": answer}, {"role": "user", "content": "b"}]
        ids = page.evaluate("(m) => glgpt.chatPrompt(m, 6).then((p) => p.ids)", more)
        assert ids == model.chat_template.prompt(more).ids
        assert page.evaluate("(ids) => glgpt.model.cache.held(ids)", ids) >= len(
            expected
        )  # the second turn reads only new tokens
    page.get_by_role("button", name="Tokens").click()
    token = page.locator("[data-part=token]").nth(2)
    token.click()
    popup = page.get_by_role("group", name="Alternatives")
    popup.get_by_role("group", name="Look inside").get_by_role("button", name="Attention").click()
    page.get_by_role("region", name="Attention").wait_for()
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Chat").click()
    assert messages(page)[0] == first[0]
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edit the message").fill("other")
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Attention").click()
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Chat").click()
    edited = page.get_by_role("textbox", name="Edit the message")
    assert edited.input_value() == "other"
    edited.press("Enter")
    page.locator("[data-part=message]", has_text="other").wait_for()
    page.get_by_role("button", name="Regenerate").wait_for()
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_role("button", name="Stop").wait_for(state="detached")
    assert len(messages(page)) == 2
    check_earlier_answers(page)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Really delete").click()
    page.get_by_role("heading", name="Chat with").wait_for()
    assert page.get_by_role("button", name="Delete").count() == 0


def check_earlier_answers(page: Any) -> None:
    """Fails if the tokens of a new or stored answer cannot be opened, or if opening them changes the conversation."""
    for text in ("again and again and again", "and more of it"):  # more than the context holds
        ask(page, text)
    page.get_by_text("no longer reads the").wait_for()
    shown = messages(page)
    inspect_earlier(page)
    page.get_by_role("button", name="Tokens").first.click()
    assert messages(page) == shown
    page.reload()
    page.evaluate("glgpt.ready")
    page.get_by_role("button", name="other", exact=True).click()
    page.locator("[data-part=message]", has_text="and more of it").wait_for()
    assert messages(page) == shown
    inspect_earlier(page)  # after the reload, the tokens come from the stored conversation
    page.get_by_role("button", name="Tokens").first.click()
    assert messages(page) == shown


def inspect_earlier(page: Any) -> None:
    """Opens the alternatives and the attention of a token of the first answer, which is not the last message."""
    answer = page.locator("[data-part=message]").nth(1)
    page.get_by_role("button", name="Tokens").first.click()
    answer.locator("[data-part=token]").nth(1).click()
    popup = page.get_by_role("group", name="Alternatives")
    popup.get_by_text("replaces the messages after").wait_for()
    popup.get_by_role("group", name="Look inside").get_by_role("button", name="Attention").click()
    page.get_by_role("region", name="Attention").wait_for()
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Chat").click()
    answer.wait_for()


def drop(page: Any, name: str, text: str) -> None:
    page.evaluate(
        """([name, text]) => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([text], name));
          const event = new DragEvent("drop", {dataTransfer, bubbles: true, cancelable: true});
          document.querySelector("textarea").dispatchEvent(event);
        }""",
        [name, text],
    )


def test_saved_conversations(deep: Deep, serve: Callable[..., str], browse: Callable[..., Any], tmp_path: Path) -> None:
    """Fails if the page refuses a file of `glgpt chat`, or a hostile file replaces a conversation."""
    page = browse(serve(deep("llama")[1]) + f"#answer={ANSWER}&temperature=0&system=own")
    page.evaluate("glgpt.ready")
    ask(page, "mine")
    own = messages(page)
    turns = [{"role": "user", "content": "*hello*"}, {"role": "assistant", "content": "- one\n- two"}]
    saved = {"version": VERSION, "model": "m", "messages": [{"role": "system", "content": "be brief"}, *turns]}
    file = tmp_path / "saved.json"
    file.write_text(json.dumps(saved))
    page.get_by_label("Saved conversations").set_input_files(file)
    page.locator("[data-part=message] li", has_text="two").wait_for()
    system = page.get_by_role("textbox", name="System prompt")
    assert messages(page) == ["*hello*", "one\ntwo"] and system.input_value() == "be brief"
    file.write_text(json.dumps(saved | {"messages": [{"role": "user", "content": "cut off"}]}))  # without an answer
    page.get_by_label("Saved conversations").set_input_files(file)
    page.get_by_role("button", name="Answer", exact=True).click()
    page.get_by_role("button", name="Regenerate").wait_for()
    assert messages(page)[0] == "cut off" and len(messages(page)) == 2
    page.get_by_role("button", name="*hello*", exact=True).click()
    hostile = {
        "not a saved conversation": ["{", "[1]", '{"messages": []}', "\0" * 99],
        "version": ['{"version": 99, "messages": []}'],
        "the role is": [json.dumps(saved | {"messages": [{"role": "<b>", "content": "x"}]})],
        "the content": [json.dumps(saved | {"messages": [{"role": "user", "content": {"length": 1}}]})],
        "characters": [json.dumps(saved | {"messages": [{"role": "user", "content": "x" * (1 << 20)}]})],
        "MiB": ["x" * (9 << 20)],
    }
    for said, texts in hostile.items():
        for text in texts:
            drop(page, "bad.json", text)
            page.get_by_role("status").filter(has_text="bad.json:").filter(has_text=said).wait_for()
            assert messages(page) == ["*hello*", "one\ntwo"]
            page.get_by_role("button", name="mine", exact=True).click()
            assert messages(page) == own and system.input_value() == "own"
            page.get_by_role("button", name="*hello*", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save", exact=True).click()
    download.value.save_as(tmp_path / "again.json")
    assert saved_messages(tmp_path / "again.json") == saved["messages"]
    drop(page, "again.json", (tmp_path / "again.json").read_text())
    page.wait_for_function("document.querySelectorAll('[aria-label^=Delete]').length === 4")
    page.reload()
    page.evaluate("glgpt.ready")
    page.locator("[data-part=message] li", has_text="two").wait_for()  # the tab's conversation is open again
    assert system.input_value() == "be brief"
    assert page.get_by_role("spinbutton", name="Longest answer").input_value() == str(ANSWER)
    wide = [turns[0], {"role": "assistant", "content": f"```\n{'x' * 300}\n```\n\n- [x] done"}]
    drop(page, "wide.json", json.dumps(saved | {"messages": wide}))
    page.locator("[data-part=message] pre").wait_for()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390  # long lines scroll inside the message
    assert "[x]" not in page.inner_text("main")


def test_keys_and_a_full_context(deep: Deep, serve: Callable[..., str], browse: Callable[..., Any]) -> None:
    """Fails if Escape does not stop an answer, the focus is lost, or an answer continues though the context is full."""
    page = browse(serve(deep("llama")[1]) + "#answer=4000&temperature=0")
    page.evaluate("glgpt.ready")
    field = page.get_by_role("textbox", name="Message")
    field.focus()
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    page.get_by_text("Escape stops the answer").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("Enter sends").wait_for()
    assert len(messages(page)) == 2
    page.keyboard.press("Shift+Tab")  # to the last button of the answer
    for name in ("Regenerate", "Edit"):
        while page.evaluate("document.activeElement.ariaLabel") != name:
            page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        if name == "Edit":
            page.locator("textarea[aria-label='Edit the message']:focus").wait_for()
            page.keyboard.press("Control+A")
            page.keyboard.type("other")
            page.keyboard.press("Enter")
        page.get_by_text("the context of 96 tokens is full").wait_for()
        assert page.evaluate("document.activeElement.ariaLabel") == "Message"
        assert page.evaluate("glgpt.model.cache.ids.length") <= 96
    page.keyboard.type("more")
    page.keyboard.press("Enter")
    page.get_by_text("The model reads from here on").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("Enter sends").wait_for()
    page.get_by_role("button", name="New chat").press("Enter")
    page.get_by_role("heading", name="Chat with").wait_for()
    assert page.evaluate("document.activeElement.ariaLabel") == "Message"
    page.get_by_role("button", name="other", exact=True).press("Enter")
    assert messages(page)[0] == "other"
    page.evaluate(PRESS_STOP)
    field.focus()
    page.keyboard.type("again")
    page.keyboard.press("Enter")
    page.wait_for_function("stopped")
    page.get_by_text("Enter sends").wait_for()
    assert page.evaluate("document.activeElement.ariaLabel") == "Message"


def test_a_phone_without_a_network(deep: Deep, serve: Callable[..., str], browse: Callable[..., Any]) -> None:
    """Fails if the message field is outside the window, a control has no name, or an offline visit cannot answer."""
    phone = {"width": 390, "height": 844}
    page = browse(serve(deep("llama")[1]) + "#answer=3&temperature=0", viewport=phone, keeps=True)
    page.evaluate("glgpt.ready")
    ask(page, "hello\n\n# there")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.get_by_role("textbox", name="Message").bounding_box()
    assert box["y"] + box["height"] < 844
    axe = data_path("viewer/node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
    page.evaluate(f"{axe}; 0")
    found = page.evaluate(f"axe.run(document, {{runOnly: {json.dumps(RULES)}}}).then((r) => r.violations)")
    assert [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in found] == []
    before = messages(page)
    page.evaluate(WHOLE)  # waits until the service worker has cached this version
    page.context.set_offline(True)
    page.reload()
    page.evaluate("glgpt.ready")
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Send again").click()
    page.get_by_role("button", name="Tokens").wait_for()
    page.get_by_role("button", name="Stop").wait_for(state="detached")
    assert messages(page) == before


def test_an_empty_chat_fills_the_window(deep: Deep, serve: Callable[..., str], browse: Callable[..., Any]) -> None:
    page = browse(serve(deep("llama")[1]) + f"#answer={ANSWER}", viewport={"width": 390, "height": 844})
    page.evaluate("glgpt.ready")
    page.get_by_role("heading", name="Chat with").wait_for()
    page.evaluate("document.querySelector('header').style.paddingBottom = '80px'")  # as with a list of models
    assert page.evaluate("document.documentElement.scrollHeight") == 844


def test_a_formatted_answer_on_a_phone(
    deep: Deep, serve: Callable[..., str], browse: Callable[..., Any], tmp_path: Path
) -> None:
    """Fails if cells are not aligned, keys cannot scroll a table, or the message field covers what the user opens."""
    page = browse(serve(deep("llama")[1]) + "#tokens=1", viewport={"width": 390, "height": 844})
    page.evaluate("glgpt.ready")
    table = "| name | `a_long_name_that_a_phone_cannot_show_without_scrolling` | default |\n| --- | --: | :-: |\n"
    answer = f"- [x] done\n\n{table}| a | 1 | none |"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    file = tmp_path / "saved.json"
    file.write_text(json.dumps({"version": VERSION, "model": "m", "messages": turns}))
    page.get_by_label("Saved conversations").set_input_files(file)
    page.locator("td", has_text="none").wait_for()
    aligned = "[...document.querySelectorAll('td')].map((e) => getComputedStyle(e).textAlign)"
    assert page.evaluate(aligned) == ["left", "right", "center"]
    assert page.evaluate("getComputedStyle(document.querySelector('li li')).listStyleType") == "none"
    page.locator("table").locator("..").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('table').parentElement.scrollLeft > 0")
    page.evaluate("document.querySelector('ol').style.minHeight = '2000px'")
    field = page.get_by_role("textbox", name="Message")
    system = page.get_by_role("textbox", name="System prompt")
    for name, shown in {"Conversations": page.get_by_text("Stored in this browser"), "Settings": system}.items():
        summary = page.locator("summary", has_text=name)
        summary.scroll_into_view_if_needed()
        summary.click()
        page.wait_for_timeout(100)
        top, box = summary.bounding_box()["y"], shown.bounding_box()
        assert 0 <= top < box["y"] and box["y"] + box["height"] <= field.bounding_box()["y"]


def test_an_answer_with_html_is_shown_as_text(
    deep: Deep, serve: Callable[..., str], browse: Callable[..., Any], tmp_path: Path
) -> None:
    """Fails if HTML in an answer becomes an element, a script runs, an image loads, or a link has an unsafe scheme."""
    page = browse(serve(deep("llama")[1]) + "#tokens=1")
    page.evaluate("glgpt.ready")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    lines = ["<img src=x onerror='ran = 1'>", "<script>ran = 1</script>", "a <b onclick='ran = 1'>b</b>"]
    lines += [
        "![c](https://images.example/c.png)",
        "[d](javascript:ran=1)",
        "[e](data:text/html,<script>ran=1</script>)",
    ]
    lines += ["[f](https://f.example/)", "[g]: javascript:ran=1", "[g]", "<javascript:ran=1>", "`<i>`", "&lt;u&gt;"]
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\n\n".join(lines)}]
    file = tmp_path / "saved.json"
    file.write_text(json.dumps({"version": VERSION, "model": "m", "messages": turns}))
    page.get_by_label("Saved conversations").set_input_files(file)
    answer = page.locator("[data-part=message]").nth(1)
    answer.get_by_text("<u>").wait_for()
    links = "(e) => [...e.querySelectorAll('a')].map((a) => a.href)"
    assert answer.evaluate(links) == ["https://f.example/"]
    assert answer.evaluate("(e) => e.querySelectorAll('img, script, b, i, u, [onclick]').length") == 0
    assert all(line in answer.inner_text() for line in lines[:4])
    assert page.evaluate("typeof ran") == "undefined" and not any("example" in url for url in requests)


def test_the_prompt_api(deep: Deep, serve: Callable[..., str], browse: Callable[..., Any]) -> None:
    """Fails if a session forgets messages, gets the messages of its clone, or still answers after `destroy`."""
    page = browse(serve(deep("llama")[1]) + "#tokens=1")
    page.evaluate("glgpt.ready")
    found = page.evaluate(
        """async () => {
          const session = await glgpt.languageModel({initialPrompts: [{role: "system", content: "s"}], topK: 1});
          const before = session.contextUsage;
          const more = await session.measureInputUsage("a");
          const stop = new AbortController();
          let text = "";
          for await (const piece of session.promptStreaming("a", {signal: stop.signal})) {
            text += piece;
            if (text.length > 3) break;
          }
          const copy = await session.clone();
          await copy.append("b");
          const grown = copy.contextUsage > session.contextUsage;
          session.destroy();
          const refused = await session.prompt("c").catch((error) => error.name);
          const constrained = await copy.prompt("c", {responseConstraint: /[ab]{2}/});
          const unusable = {responseConstraint: {type: "integer", multipleOf: 2}};
          const named = await copy.prompt("c", unusable).catch(({name, message}) => [name, message]);
          delete globalThis.LanguageModel;
          const set = [glgpt.polyfillLanguageModel(), glgpt.polyfillLanguageModel()];
          set.push(await LanguageModel.availability());
          (await LanguageModel.create({topK: (await LanguageModel.params()).maxTopK})).destroy();
          return {set, before, more, text: text.length, grown, refused, constrained, named, window: copy.contextWindow};
        }"""
    )
    assert found["set"] == [True, False, "available"]
    assert found["before"] > 0 and found["more"] > 0 and found["text"] > 3 and found["grown"]
    assert (found["refused"], found["window"]) == ("AbortError", 96)
    assert found["constrained"] in ("aa", "ab", "ba", "bb")
    assert found["named"][0] == "NotSupportedError" and "multipleOf" in found["named"][1]
    check_hostile_templates(page)


def check_hostile_templates(page: Any) -> None:
    """Fails if a hostile template hangs or ends the page, or if the model's own template fails afterwards."""
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    shared = "{% set n = namespace(v=['a']) %}{% for i in range(60) %}{% set n.v = [n.v, n.v] %}{% endfor %}"
    wide = "{{ 'a\\na\\na\\na\\na' | indent(2000000) }}"
    found = page.evaluate(
        """async (sources) => {
          const { chat_template: own } = glgpt.model.manifest;
          const { source } = own;
          const asked = () => glgpt.chatPrompt([{role: "user", content: "a"}], 1);
          const refused = [];
          for (own.source of sources) refused.push(await asked().catch(({message}) => message));
          own.source = source;
          return [refused, (await asked()).ids.length > 0];
        }""",
        [endless, f"{shared}{{{{ n.v | tojson }}}}", wide, "{{ ''.constructor() }}"],
    )
    (slow, larger, indented, attribute), usable = found
    assert usable and "took more than 3 s" in slow and "too much memory" in larger
    assert "more than 1048576" in indented and "not a function" in attribute


def test_openai_completions(deep: Deep, serve: Callable[..., str], browse: Callable[..., Any]) -> None:
    """Fails if a response differs from OpenAI's format, shows a stop text, or continues after it is abandoned."""
    page = browse(serve(deep("llama")[1]) + "#tokens=1")
    page.evaluate("glgpt.ready")
    found = page.evaluate(
        """async () => {
          const messages = [{role: "user", content: [{type: "text", text: "hi"}]}];
          const create = (more, options) => glgpt.chat.completions.create({messages, ...more}, options);
          const greedy = {temperature: 0, max_tokens: 6};
          const whole = await create({...greedy, logprobs: true, top_logprobs: 2});
          const chunks = [];
          const asked = {...greedy, stream: true, logprobs: true, stream_options: {include_usage: true}};
          for await (const chunk of await create(asked)) chunks.push(chunk);
          const text = whole.choices[0].message.content;
          const stopped = await create({...greedy, stop: [text.slice(2, 5)]});
          const left = await create({max_tokens: 60, stream: true});
          for await (const chunk of left) if (chunk.choices[0].delta.content) break;
          const stop = new AbortController();
          const aborted = create({max_tokens: 60}, {signal: stop.signal}).catch((error) => error.name);
          stop.abort();
          const refused = [];
          for (const more of [{n: 2}, {tokens: 3}, {top_logprobs: 2}, {messages: []}, {temperature: -1},
                              {messages: [{role: "user", content: "long ".repeat(99)}]},
                              {response_format: {type: "json_schema"}}, {guided_regex: "(?=a)"}]) {
            const {status, param, code, error} = await create(more).catch((thrown) => thrown);
            refused.push([status, param, code, error.type]);
          }
          const choice = await create({guided_choice: ["a", "b"]});
          const parameters = {type: "object", properties: {a: {enum: ["x", "y"]}}, required: ["a"]};
          const tools = [{type: "function", function: {name: "f", parameters}}];
          const described = await create({tools}).catch(({code}) => code);
          glgpt.model.manifest.chat_template.source += "{# tools tool_calls <tool_call> #}";
          const called = await create({tools, tool_choice: "required"});
          const parts = [];
          const asked2 = {tools, tool_choice: tools[0], stream: true};
          for await (const {choices: [{delta, finish_reason}]} of await create(asked2))
            parts.push(delta.tool_calls?.[0] ?? finish_reason);
          const bad = {type: "function", function: {name: "g", parameters: {type: "object", not: {}}}};
          const unusable = [];
          for (const tool_choice of ["required", bad])
            unusable.push(await create({tools: [...tools, bad], tool_choice}).catch((error) => error.error));
          const asked3 = {tools: [...tools, bad], tool_choice: "some"};
          const wrong = await create(asked3).catch((error) => error.error.param);
          const functions = {described, called: called.choices[0], parts, unusable, wrong};
          return {whole, chunks, stopped, aborted: await aborted, refused, choice: choice.choices[0], functions};
        }"""
    )
    whole, chunks = found["whole"], found["chunks"]
    (choice,) = whole["choices"]
    text, usage = choice["message"]["content"], whole["usage"]
    assert (whole["object"], choice["finish_reason"], usage["completion_tokens"]) == ("chat.completion", "length", 6)
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6
    assert [len(each["top_logprobs"]) for each in choice["logprobs"]["content"]] == [2] * 6
    assert all(each["logprob"] == each["top_logprobs"][0]["logprob"] < 0 for each in choice["logprobs"]["content"])
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == text
    chances = [p["token"] for c in chunks[:-1] for p in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert chances == [p["token"] for p in choice["logprobs"]["content"]]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], usage)
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    (stopped,) = found["stopped"]["choices"]
    assert text.startswith(stopped["message"]["content"]) and stopped["finish_reason"] == "stop"
    assert len(stopped["message"]["content"]) <= 2 and found["aborted"] == "AbortError"
    assert found["choice"]["message"]["content"] in ("a", "b") and found["choice"]["finish_reason"] == "stop"
    check_functions(found["functions"])
    bad = "invalid_request_error"
    assert found["refused"] == [
        [400, "n", None, bad],
        [400, "tokens", None, bad],
        [400, "top_logprobs", None, bad],
        [400, "messages", None, bad],
        [400, "temperature", None, bad],
        [400, "messages", "context_length_exceeded", bad],
        [400, "response_format", None, bad],
        [400, "guided_regex", None, bad],
    ]


def check_functions(found: Any) -> None:
    """Fails if a call is returned as text, its arguments do not match the schema, or an error names no field."""
    assert found["described"] == "context_length_exceeded"  # the system message that describes the tools is too long
    message = found["called"]["message"]
    (call,) = message["tool_calls"]
    assert (message["content"], found["called"]["finish_reason"], call["type"]) == (None, "tool_calls", "function")
    assert call["function"]["name"] == "f" and json.loads(call["function"]["arguments"])["a"] in ("x", "y")
    first, *more = [part for part in found["parts"] if isinstance(part, dict)]
    assert first["function"]["name"] == "f" and first["id"] and found["parts"][-1] == "tool_calls"
    assert json.loads("".join(part["function"]["arguments"] for part in [first, *more]))["a"] in ("x", "y")
    for error in found["unusable"]:
        assert error["param"] == "tools.1.function.parameters"
        assert "function g" in error["message"] and '"not"' in error["message"]
    assert found["wrong"] == "tool_choice"
