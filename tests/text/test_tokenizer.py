"""Tests the tokenizer: round trips, streams, labels, unusual vocabularies, and errors for damaged files."""

import json
import shutil
from itertools import pairwise

import pytest
import tiktoken
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glgpt.checkpoint.finding import embedded_weights
from glgpt.errors import GlgptError
from glgpt.gguf.splits import GPT2
from glgpt.text import tokenizer as module
from glgpt.text.tokenizer import StreamDecoder, load_tokenizer

SHAKESPEARE = load_tokenizer(embedded_weights(), 1024)
LETTERS = {byte: letter for letter, byte in module.LETTER_BYTE.items()}


def spell(data):
    """Returns bytes as the letters that vocab.json uses for them."""
    return "".join(LETTERS[byte] for byte in data)


def write(folder, vocab, merges, **extra):
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    for name, content in extra.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def alphabet(start=0):
    return {letter: start + byte for byte, letter in LETTERS.items()}


def combined(vocab, merges, **changes):
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    split = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    return {"model": model, "pre_tokenizer": split, "added_tokens": [], "normalizer": None} | changes


# Text and ids


def test_known_ids():
    ids = SHAKESPEARE.encode("To be, or not\nto be")
    assert ids == [397, 305, 12, 530, 322, 199, 894, 305]
    assert SHAKESPEARE.decode(ids) == "To be, or not\nto be"
    assert (SHAKESPEARE.vocab_size, SHAKESPEARE.eos) == (1024, 0)
    assert SHAKESPEARE.encode("") == []


@given(st.text())
@example("<|endoftext|>a<|endoftext|>")
@example(" " * 5000 + "\t\r\n")
@settings(deadline=None)
def test_text_survives(text):
    ids = SHAKESPEARE.encode(text)
    assert SHAKESPEARE.decode(ids) == text
    assert SHAKESPEARE.decode_bytes(ids) == text.encode()


def test_lone_surrogates_become_replacement_characters():
    assert SHAKESPEARE.decode(SHAKESPEARE.encode("a\ud800b")) == "a\ufffdb"


def test_special_token_in_text_is_one_id():
    assert SHAKESPEARE.encode("a<|endoftext|>b") == [*SHAKESPEARE.encode("a"), 0, *SHAKESPEARE.encode("b")]


@given(st.lists(st.integers(0, 1023), max_size=40))
@settings(deadline=None)
def test_stream_equals_whole(ids):
    stream = StreamDecoder(SHAKESPEARE)
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.flush() == SHAKESPEARE.decode(ids)


def test_stream_shows_a_character_with_its_last_byte():
    stream = StreamDecoder(SHAKESPEARE)
    ids = SHAKESPEARE.encode("é🙂")
    assert len(ids) == 6
    assert [stream.push(token) for token in ids] == ["", "é", "", "", "", "🙂"]
    assert stream.push(ids[0]) == ""
    assert stream.flush() == "\ufffd"


@pytest.mark.parametrize("token", [1024, -1, 10**9])
def test_ids_beyond_the_vocabulary(token):
    for call in (SHAKESPEARE.token_bytes, SHAKESPEARE.label, StreamDecoder(SHAKESPEARE).push):
        with pytest.raises(GlgptError, match=f"id {token} is outside the vocabulary; ids run from 0 to 1023"):
            call(token)
    with pytest.raises(GlgptError):
        SHAKESPEARE.decode([5, token])


def test_labels():
    shown = {" the": "·the", "\n": "⏎", "\t": "⇥", "a": "a", "<|endoftext|>": "<|endoftext|>"}
    for text, label in shown.items():
        assert SHAKESPEARE.label(SHAKESPEARE.encode(text)[0]) == label
    assert SHAKESPEARE.label(SHAKESPEARE.encode("é")[0]) == r"\xc3"
    assert SHAKESPEARE.label(SHAKESPEARE.encode("\x07")[0]) == r"\x07"
    for token in range(1024):
        label = SHAKESPEARE.label(token)
        assert label.isprintable()
        assert 1 <= len(label) <= 14


# Vocabularies of other kinds


def test_ids_in_any_order(tmp_path):
    vocab = alphabet(start=3) | {"ab": 0, "abc": 1, "<|endoftext|>": 2}
    ours = load_tokenizer(write(tmp_path, vocab, [("a", "b"), ("ab", "c")]), 259)
    assert ours.encode("abcab<|endoftext|>a") == [1, 0, 2, 3 + ord("a")]
    assert ours.decode([1, 0, 2]) == "abcab<|endoftext|>"
    assert ours.eos == 2


def test_missing_bytes(tmp_path):
    ours = load_tokenizer(write(tmp_path, {"a": 0, "b": 1, "ab": 2}, [("a", "b")]), 3)
    assert ours.encode("abba") == [2, 1, 0]
    assert ours.eos is None
    with pytest.raises(GlgptError, match=r"merges.txt: the vocabulary has no token for byte 0x63 of the text"):
        ours.encode("abc")


def test_padded_vocabulary(tmp_path):
    ours = load_tokenizer(write(tmp_path, alphabet(), []), 300)
    assert ours.decode([ord("x"), 299]) == "x"
    assert ours.label(299) == "[299]"
    with pytest.raises(GlgptError, match="id 300 is outside"):
        ours.decode([300])


def test_token_beyond_the_model(tmp_path):
    ours = load_tokenizer(write(tmp_path, alphabet(), [], added_tokens={"<pad>": 256}), 256)
    with pytest.raises(GlgptError, match=r"'<pad>' \(id 256\); the model's vocabulary ends at 255"):
        ours.encode("a<pad>")


def test_added_tokens_and_named_end(tmp_path):
    config = {"eos_token": {"content": "</s>"}, "added_tokens_decoder": {"257": {"content": "</s>"}}}
    folder = write(tmp_path, alphabet(), [], added_tokens={"<pad>": 256, "<pad>>": 258}, tokenizer_config=config)
    ours = load_tokenizer(folder, 259)
    assert ours.encode("<pad></s><pad>>a") == [256, 257, 258, ord("a")]
    assert ours.eos == 257
    assert ours.decode([257]) == "</s>"


def test_tokenizer_json(tmp_path):
    path = tmp_path / "tokenizer.json"
    added = [{"content": "<|endoftext|>", "id": 257, "special": True}]
    for merges in (["a b"], [["a", "b"]]):
        path.write_text(json.dumps(combined(alphabet() | {"ab": 256}, merges, added_tokens=added)))
        ours = load_tokenizer(tmp_path, 258)
        assert ours.encode("ab<|endoftext|>ba") == [256, 257, ord("b"), ord("a")]
        assert ours.eos == 257
    split = {"type": "ByteLevel", "add_prefix_space": True}
    path.write_text(json.dumps(combined(alphabet() | {"ab": 256}, [], pre_tokenizer=split)))
    assert load_tokenizer(tmp_path, 258).encode("a") == [ord(" "), ord("a")]
    path.write_text(json.dumps(combined({}, [], model={"type": "Unigram"})))
    assert load_tokenizer(tmp_path, 258) is None
    whole = {"type": "BPE", "vocab": alphabet() | {"ab": 256}, "merges": ["a b"]}
    for other in (
        combined({}, [], model=whole | {"byte_fallback": True}, pre_tokenizer={"type": "Whitespace"}),
        combined({}, [], model=whole, pre_tokenizer={"type": "Whitespace"}),
        combined({}, [], model=whole, pre_tokenizer={"type": "Whitespace"}, normalizer={"type": "NFC"}),
    ):
        path.write_text(json.dumps(other))
        ours = load_tokenizer(tmp_path, 258)
        assert ours.split is None and ours.encode("ab") == [256]  # uses the `tokenizers` library
    path.write_text(json.dumps(combined({}, [], model={"type": "BPE", "byte_fallback": True})))
    with pytest.raises(GlgptError, match="is damaged: tokenizers cannot read it"):
        load_tokenizer(tmp_path, 258)


def test_no_tokenizer(tmp_path, monkeypatch):
    assert load_tokenizer(tmp_path, 1024) is None

    def unreachable(name):
        raise OSError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    assert load_tokenizer(tmp_path, 50257) is None
    ranks = {bytes([i]): i for i in range(256)}
    tiny = tiktoken.Encoding("gpt2", pat_str=GPT2.pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 256})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: tiny)
    ours = load_tokenizer(tmp_path, 50257)
    assert ours.encode("a<|endoftext|>") == [ord("a"), 256]
    assert ours.decode([ord("a"), 256]) == "a<|endoftext|>"
    assert ours.eos == 256


# Merges that tiktoken would apply in another order than BPE


def by_pairs(data, merges):
    """Encodes with the textbook algorithm: merges the pair of lowest rank first, from the left."""
    parts = [data[i : i + 1] for i in range(len(data))]
    while len(parts) > 1:
        ranked = [(merges.get(pair, 10**9), at) for at, pair in enumerate(pairwise(parts))]
        rank, at = min(ranked)
        if rank == 10**9:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def test_a_merge_of_what_an_earlier_one_takes_is_stray():
    # By rank, "aaa" becomes "aa" and "a", so the second merge is never applied.
    assert module.stray_merge([(b"a", b"a"), (b"a", b"aa")]) == (b"a", b"aa")
    assert module.stray_merge([(b"a", b"a"), (b"aa", b"a")]) is None
    assert module.stray_merge([]) is None


def test_a_merge_of_an_empty_token_is_stray():
    # The last merge makes "x" of "" and "x", so undoing it would give "x" again, forever.
    assert module.stray_merge([(b"q", b"x"), (b"qx", b"z"), (b"", b"x")]) == (b"", b"x")


@given(st.data())
@settings(max_examples=100)
def test_accepted_merges_are_applied_as_bpe_does(data):
    tokens, merges = [b"a", b"b", b"c"], {}
    for _ in range(data.draw(st.integers(1, 12))):
        pair = (data.draw(st.sampled_from(tokens)), data.draw(st.sampled_from(tokens)))
        if pair not in merges and module.stray_merge([*merges, pair]) is None:
            merges[pair] = 256 + len(merges)
            tokens.append(pair[0] + pair[1])
    ranks = {bytes([i]): i for i in range(256)} | {a + b: rank for (a, b), rank in merges.items()}
    engine = tiktoken.Encoding("bpe", pat_str=GPT2.pattern, mergeable_ranks=ranks, special_tokens={})
    for text in data.draw(st.lists(st.text("abc", max_size=40), min_size=5, max_size=5)):
        assert engine.decode_tokens_bytes(engine.encode_ordinary(text)) == by_pairs(text.encode(), merges)


@pytest.mark.parametrize(
    "merges",
    [
        [("ab", "c"), ("a", "b")],  # uses a token that a later merge makes
        [("a", "b"), ("b", "c"), ("a", "bc")],  # BPE splits "abc" into "ab" and "c"
        [("a", "b"), ("ab", "c"), ("b", "c"), ("a", "bc")],  # two merges make "abc"
    ],
)
def test_stray_merges_are_refused(tmp_path, merges):
    made = {a + b: 256 + i for i, (a, b) in enumerate(merges)}
    with pytest.raises(GlgptError, match=r"merges.txt: the merge '.*' '.*' is out of order"):
        load_tokenizer(write(tmp_path, alphabet() | made, merges), 300)


# Damaged files


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocab.json", b"{", "vocab.json is not valid JSON"),
        ("vocab.json", b"[]", "vocab.json does not hold a JSON object"),
        ("vocab.json", b"\xff", "vocab.json is not UTF-8 text"),
        ("vocab.json", b'{"a": "b"}', "vocab.json does not map tokens to ids"),
        ("vocab.json", b'{"a": -1}', "vocab.json does not map tokens to ids"),
        ("vocab.json", b'{"a": 1, "b": 1}', "vocab.json gives two tokens the same id"),
        ("vocab.json", b"version https://git-lfs.github.com/spec/v1", "run git lfs pull"),
        ("merges.txt", b"\xff", "merges.txt is not UTF-8 text"),
        ("merges.txt", b"#version: 0.2\nt h\nthe", "merges.txt, line 3: 'the' is not a pair of tokens"),
        ("merges.txt", b"q x\n", "merges.txt: the merge 'q' 'x' needs a token that the vocabulary lacks"),
        ("tokenizer_config.json", b"nonsense", "tokenizer_config.json is not valid JSON"),
        ("added_tokens.json", b'{"a": 0.5}', "added_tokens.json does not map tokens to ids"),
    ],
)
def test_damaged_files(tmp_path, name, content, said):
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(embedded_weights() / file, tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GlgptError) as caught:
        load_tokenizer(tmp_path, 1024)
    assert said in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.data())
@settings(max_examples=100)
def test_damaged_tokenizer_json(tmp_path_factory, data):
    # Replaces any part with any value. The result must be a tokenizer, None, or a one-line error.
    folder = tmp_path_factory.mktemp("damaged")
    whole = combined({"a": 0, "b": 1, "ab": 2}, ["a b"], added_tokens=[{"content": "<x>", "id": 3}])
    place = whole
    for _ in range(data.draw(st.integers(0, 2))):
        inner = [
            value
            for value in (place.values() if isinstance(place, dict) else place)
            if value and type(value) in (dict, list)
        ]
        place = data.draw(st.sampled_from(inner)) if inner else place
    key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    place[key] = data.draw(
        st.none() | st.integers() | st.text() | st.just([]) | st.just({}) | st.just([[1]]) | st.just("a b c")
    )
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    try:
        ours = load_tokenizer(folder, 4)
        assert ours is None or isinstance(ours.decode([0, 1, 2, 3]), str)
    except GlgptError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(("there", "missing"), [("vocab.json", "merges.txt"), ("merges.txt", "vocab.json")])
def test_half_a_tokenizer_is_an_error(tmp_path, there, missing):
    """Fails if a folder with only one of the two files gets GPT-2's tokenizer instead of an error."""
    (tmp_path / there).write_text("{}")
    with pytest.raises(GlgptError, match=f"{missing} is missing"):
        load_tokenizer(tmp_path, 50257)


def test_a_merge_that_is_there_twice_is_refused(tmp_path):
    vocab = {"a": 0, "b": 1, "ab": 2}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\na b\n")
    with pytest.raises(GlgptError, match=r"merges\.txt: the merge 'a' 'b' appears twice"):
        load_tokenizer(tmp_path, 3)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("merges.txt", b"\x1b[2J\x07 x y\n", r"line 1: '\x1b[2J\x07 x y' is not a pair of tokens"),
        ("merges.txt", b"\xc2\x9b1m " + b"x" * 9999 + b"\n", r"the merge '\x9b1m' 'xxx"),
        ("merges.txt", b"\n" * ((1 << 20) + 2), "more than 1,048,576 lines"),
        ("vocab.json", b'{"a": 16777216}', "ids must be below 16,777,216"),
        ("vocab.json", b'{"a": 1' + b"0" * 50 + b"}", "an integer of 51 digits"),
        (
            "tokenizer_config.json",
            b'{"added_tokens_decoder": {"' + b"9" * 5000 + b'": {"content": "<x>"}}}',
            "ids must be below 16,777,216",
        ),
        (
            "added_tokens.json",
            json.dumps({f"<{i}>": 1000 + i for i in range(10_001)}).encode(),
            "more than 10,000 added tokens",
        ),
    ],
)
def test_hostile_files_are_refused_in_one_line(tmp_path, name, content, said):
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GlgptError) as caught:
        load_tokenizer(tmp_path, None)
    message = str(caught.value)
    assert said in message and message.isprintable() and len(message) < 500
