"""Tests stages as Ray Serve deployments: the same text as unsplit, sticky sessions, killed replicas."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect

from glgpt.cli import main
from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.models.part import Part
from glgpt.wire import hidden, messages

TOKENS = 6


def test_without_ray_one_line_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "glgpt.split.cluster", raising=False)
    assert main(["split", "serve", "--engine", "ray", "--stages", "2", "--listen", "0"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and 'pip install "glgpt[cluster]"' in err
    assert main(["split", "serve", "--stages", "2"]) == 2
    assert "--stages needs --engine ray" in capsys.readouterr().err


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, Any]]:
    """Runs `glgpt split serve` on blocks 0 and 1 of a golden, as two stages with two replicas each."""
    pytest.importorskip("ray")
    folder = Path(__file__).parents[1] / "goldens" / "llama-grouped"
    command = [
        sys.executable,
        "-m",
        "glgpt",
        "split",
        "serve",
        "--model",
        str(folder),
        "--blocks",
        "+0-1",
        "--listen",
        "0",
    ]
    command += ["--engine", "ray", "--stages", "2", "--replicas", "2", "--json", "--device", "software"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        ready = json.loads(process.stdout.readline())
        yield ready | {"process": process, "folder": folder}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    finally:
        process.kill()
        process.communicate()


def test_the_text_is_the_unsplit_one_and_sessions_stay_where_their_caches_are(cluster: dict[str, Any]) -> None:
    assert (cluster["holds"], cluster["sessions"]) == ("+0-1", 16)
    folder = cluster["folder"]
    prompts = [[3, 31, 6 + i] for i in range(4)]
    with LanguageModel.from_pretrained(folder, device="software") as model:
        wanted = [list(model.generate_ids(ids, TOKENS, temperature=1, seed=3)) for ids in prompts]
        logits, activations = model.run_with_cache(prompts[0])
    models = [load(folder, rest=cluster["url"], device="software") for _ in prompts]
    try:
        runs = [m.generate_ids(ids, TOKENS, temperature=1, seed=3) for m, ids in zip(models, prompts, strict=True)]
        assert [list(t) for t in zip(*zip(*runs, strict=True), strict=True)] == wanted
        assert all(m.traffic()[1]["replays"] == 0 for m in models), "a session changed its replica"
        ours, found = models[0].run_with_cache(prompts[0])
        assert np.array_equal(ours, logits) and list(found) == list(activations)
    finally:
        for model in models:
            model.close()
    with load(folder, rest=cluster["url"], speculate=True, device="software") as split:
        assert list(split.generate_ids(prompts[0], TOKENS, temperature=1, seed=3)) == wanted[0]


def test_a_look_whose_end_nobody_wants_passes_all_stages(cluster: dict[str, Any]) -> None:
    ids, names = [3, 31, 6], ("h.0.resid_post", "h.1.resid_post")
    with LanguageModel.from_pretrained(cluster["folder"], device="software") as model:
        wanted = model.run_with_cache(ids, ["embed", *names])[1]
    with connect(cluster["url"], compression=None, proxy=None, max_size=None) as socket:
        socket.send(messages.encode(messages.Open(protocol=messages.PROTOCOL)))
        socket.recv(timeout=60)
        look = messages.Look(seq=0, n=len(ids), names=names, end=False)
        socket.send(messages.encode(look, hidden.pack(wanted["embed"], "f32")))
        said, payload = messages.decode_answer(socket.recv(timeout=60))
    assert [name for name, _ in said.arrays] == list(names)
    assert bytes(payload) == b"".join(wanted[name].tobytes() for name in names)


def replicas(ancestor: int, stage: str) -> list[int]:
    """Returns the process ids of those descendants of a process that Ray names as replicas of a stage."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f":{stage}" not in (folder / "cmdline").read_text().partition("ServeReplica")[2]:
                continue
            pid = int(folder.name)
            while pid > 1 and pid != ancestor:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if pid == ancestor:
                found.append(int(folder.name))
    return found


def test_a_killed_replica_costs_no_token(cluster: dict[str, Any]) -> None:
    """Kills both replicas of a stage one after the other, so that the session's replica is one of them."""
    folder, ids, tokens = cluster["folder"], [3, 31, 6], 16
    with LanguageModel.from_pretrained(folder, device="software") as model:
        wanted = list(model.generate_ids(ids, tokens, temperature=1, seed=5))
    with load(folder, rest=cluster["url"], device="software") as split:
        stream = split.generate_ids(ids, tokens, temperature=1, seed=5)
        text = [next(stream) for _ in range(3)]
        before = replicas(cluster["process"].pid, "stage-1")
        assert len(before) == 2
        for pid in before:
            os.kill(pid, signal.SIGKILL)
            text += [next(stream) for _ in range(3)]
        assert text + list(stream) == wanted
        assert split.traffic()[1]["replays"] >= 1
    again = replicas(cluster["process"].pid, "stage-1")
    assert again and not {*again} & {*before}


def test_blocks_are_shared_out_evenly() -> None:
    pytest.importorskip("ray")
    from glgpt.checkpoint.opening import Checkpoint
    from glgpt.errors import ArgumentError
    from glgpt.split.cluster import ranges

    with Checkpoint.open(None) as checkpoint:
        config = checkpoint.config
    assert [str(p) for p in ranges(Part.whole(config), 3, config)] == ["embed,0-1", "+2-3", "4-5,head"]
    assert [str(p) for p in ranges(Part(1, 6, False, True), 2, config)] == ["+1-2", "3-5,head"]
    with pytest.raises(ArgumentError, match="has 5 blocks"):
        ranges(Part(1, 6, False, True), 6, config)
