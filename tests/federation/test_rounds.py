"""Tests rounds: when they end, which updates count, who may join, and that they survive a killed gateway."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from helpers.fake_session import Host, make_files, make_session

from glgpt.errors import GlgptError
from glgpt.federation import protocol, rules
from glgpt.federation.invitations import digest
from glgpt.federation.rounds import members
from glgpt.federation.rounds.members import Refused
from glgpt.federation.rounds.updates import Rejected
from glgpt.federation.session import Checkpoint, Files, NotFiniteError, weights_id


def test_a_round_ends_when_all_who_were_asked_have_answered(host):
    h = host()
    a, b, c = h.join("a"), h.join("b"), h.join("c")
    h.begin()
    h.send(a.member)
    h.send(b.member)
    assert h.rounds.tick() == ""  # c is connected and has not answered
    h.send(c.member)
    assert h.rounds.tick() == "close"
    assert h.rounds.reply().updates.shape == (3, len(h.before))


def test_a_round_ends_at_quorum_plus_grace(host, clock):
    h = host()
    a, b, _ = h.join(), h.join(), h.join()
    h.begin()
    h.send(a.member)
    clock.now += 10
    assert h.rounds.tick() == ""
    h.send(b.member)
    clock.now += 1.9
    assert h.rounds.tick() == ""
    clock.now += 0.2  # half of the grace has passed: clients that still train should send their change
    assert h.rounds.tick() == "wrap_up"
    assert h.rounds.tick() == ""
    clock.now += 2
    assert h.rounds.tick() == "close"


def test_a_straggler_holds_nobody_beyond_the_deadline(host, clock):
    h = host(grace=20.0, round_seconds=10.0)
    a, b, _ = h.join(), h.join(), h.join()
    h.begin()
    h.send(a.member)
    h.send(b.member)
    clock.now += 9.9
    assert h.rounds.tick() == "wrap_up"
    clock.now += 0.2
    assert h.rounds.tick() == "close"


def test_below_the_quorum_the_deadline_rolls_and_what_came_is_kept(host, clock):
    h = host()
    a, b = h.join(), h.join()
    h.begin()
    h.send(a.member)
    clock.now += 31
    h.rounds.tick()
    assert not h.rounds.open.closed
    assert h.rounds.offer(b.member)["seconds_left"] == pytest.approx(30)
    h.send(b.member)
    assert h.rounds.tick() == "close"
    assert len(h.rounds.reply().updates) == 2


def test_who_left_is_not_waited_for(host):
    h = host()
    a, b, c = h.join(), h.join(), h.join()
    h.begin()
    h.send(a.member)
    h.send(b.member)
    c.member.connections = 0
    assert h.rounds.tick() == "close"


def test_a_late_joiner_gets_the_weights_at_once(host):
    h = host()
    h.begin()
    late = h.join("late")
    assert late.member.offered == h.rounds.open.id
    offer = h.rounds.offer(late.member)
    assert offer["bytes"] == h.before.nbytes and offer["attempt"] == weights_id(1, h.before)
    assert len(offer["lr"]) == h.session.local_steps


def test_a_stale_update_is_no_fault(host):
    h = host()
    a = h.join()
    h.begin(1)
    old, _ = h.update()
    h.before = h.before + np.float32(1)
    h.begin(2)
    with pytest.raises(Rejected, match="stale") as caught:
        h.rounds.check(a.member, old)
    assert caught.value.stale and a.member.strikes == 0
    h.send(a.member)
    with pytest.raises(Rejected, match="already"):
        h.send(a.member)


@pytest.mark.parametrize(
    "claim",
    [{"tokens": 10**9}, {"steps": 99}, {"bytes": 3}, {"dtype": "f16"}, {"scale": 1e300, "loss": 1e-9, "steps": 0}],
)
def test_three_bad_updates_set_a_client_aside(host, claim):
    h = host()
    bad, good = h.join("bad"), h.join("good")
    h.begin()
    for _ in range(rules.MAX_STRIKES):
        with pytest.raises(Rejected):
            h.send(bad.member, **claim)
    assert "3 rejected updates" in bad.member.aside
    with pytest.raises(Rejected, match="set aside"):
        h.send(bad.member)
    assert h.rounds.offer(bad.member) is None
    shown = next(m for m in h.rounds.status()["members"] if m["name"] == "bad")
    assert shown["aside"] and "key" not in shown
    h.send(good.member)  # the round continues
    assert len(h.rounds.open.updates) == 1


def test_values_that_are_not_finite_are_refused(host):
    h = host()
    a = h.join()
    h.begin()
    update, data = h.update()
    broken = np.frombuffer(data, "<f4").copy()
    broken[5] = np.nan
    with pytest.raises(GlgptError, match="NaN"):
        h.rounds.decoded(update, broken.tobytes(), h.before)
    assert isinstance(h.rounds.members.strike(a.member, "NaN"), Rejected) and a.member.strikes == 1


def test_a_killed_gateway_forgets_nothing(host, clock):
    h = host()
    a, b = h.join("a"), h.join("b", own_text=True)
    h.begin(task=b"\x00\xfftask")
    h.send(a.member, 0.25)
    again = host()
    assert [m.name for m in again.rounds.members.values()] == ["a", "b"]
    assert again.rounds.members[1].own_text
    assert list(again.rounds.open.updates) == [0] and again.rounds.open.task == b"\x00\xfftask"
    back = again.join(resume=b.key)
    assert back.member.number == 1 and back.member.name == "b"
    again.send(back.member, 0.75)
    assert again.rounds.tick() == "close"
    rows = again.rounds.reply().updates
    assert np.allclose(rows[0], h.before + 0.25) and np.allclose(rows[1], h.before + 0.75)


def test_a_round_asked_for_again_keeps_what_came(host):
    h = host()
    a, b = h.join(), h.join()
    assert h.begin(task=b"first")
    h.send(a.member)
    assert not h.begin(task=b"second")  # a restarted ServerApp asks again
    h.send(b.member)
    assert h.rounds.tick() == "close"
    reply = h.rounds.reply()
    assert reply.task == b"second" and len(reply.updates) == 2


def test_the_next_round_drops_the_last_ones_updates(host):
    h = host()
    a = h.join()
    h.begin(1)
    h.send(a.member)
    h.before = h.before + np.float32(1)
    assert h.begin(2)
    assert not h.rounds.open.updates
    names = [path.name for path in (h.files.folder / "spool").iterdir()]
    assert not any(name.startswith("1-") for name in names)


def test_a_round_that_flower_has_is_not_opened_again(host):
    h = host()
    h.begin(1)
    h.files.save(Checkpoint(1, h.before, {}))
    assert host().rounds.open is None


def test_public_sessions_are_clipped(host):
    h = host(public=True, quorum=7)
    members = [h.join().member for _ in range(7)]
    h.begin()
    for i, member in enumerate(members):
        h.send(member, -3.5 if i == 3 else 0.5)
    assert h.rounds.tick() == "close"
    rows = h.rounds.reply().updates
    norms = [rules.norm(row - h.before) for row in rows]
    assert norms[3] == pytest.approx(1.5 * norms[0], rel=1e-5)
    assert "clipped" in members[3].said and "clipped" not in members[0].said


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({}, (0.1 * 16 + 0.2 * 32 + 0.9 * 48) / 96),
        ({"public": True}, 0.2),  # the trimmed mean
        ({"strategy": "median"}, 0.2),
        ({"strategy": "trimmed"}, 0.4),  # a fifth of three updates is rounded down to none
    ],
)
def test_updates_that_exceed_the_memory_are_combined_as_the_strategy_does(host, options, change):
    h = host(**options)
    members = [h.join().member for _ in range(3)]
    h.begin()
    for i, member in enumerate(members):
        h.send(member, (0.1, 0.2, 0.9)[i], tokens=16 * (i + 1))
    h.rounds.most_held = 2 * h.before.nbytes
    assert h.rounds.tick() == "close"
    reply = h.rounds.reply()
    assert reply.updates.shape == (1, len(h.before)) and reply.metrics["tokens"] == [96]
    assert np.abs(reply.updates[0] - h.before - change).max() < 1e-5
    assert h.rounds.figures()["streamed"]


@pytest.mark.parametrize("streamed", [False, True])
def test_with_noise_no_change_is_beyond_the_clip_and_all_count_alike(host, streamed):
    h = host(strategy="fedavg", dp_noise=1.0, dp_clip=0.5)
    members = [h.join().member for _ in range(3)]
    h.begin()
    for i, member in enumerate(members):
        h.send(member, 1e-4 if i == 0 else 3.5, tokens=16 * (i + 1))
    h.rounds.most_held = 0 if streamed else h.rounds.most_held
    assert h.rounds.tick() == "close"
    rows = h.rounds.reply().updates
    if streamed:
        change = rows[0] - h.before
        small = 1e-4 * math.sqrt(len(change))
        assert rules.norm(change) == pytest.approx((small + 0.5 + 0.5) / 3, rel=1e-3)
    else:
        assert [rules.norm(row - h.before) <= 0.5 * (1 + 1e-5) for row in rows] == [True] * 3
    assert h.rounds.figures()["epsilon"] == pytest.approx(rules.epsilon(1.0, 1), abs=1e-4)
    h.files.count_undone(1)
    h.files.count_undone(2)  # the members have seen the results of three rounds that were then undone
    assert h.rounds.figures()["epsilon"] == pytest.approx(rules.epsilon(1.0, 4), abs=1e-4)
    assert h.rounds.status()["epsilon"] == pytest.approx(rules.epsilon(1.0, 3), abs=1e-4)


def test_paused_nobody_is_asked(host, clock):
    h = host()
    a = h.join()
    h.begin()
    h.files.pause(True)
    assert h.rounds.offer(a.member) is None
    clock.now += 1000
    assert h.rounds.tick() == ""
    h.files.pause(False)
    assert h.rounds.offer(a.member)["seconds_left"] > 0


# -- admission -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        ({"token": "nothing"}, protocol.NO_TOKEN, "unknown, expired or revoked"),
        ({"token": "a.b"}, protocol.NO_TOKEN, "unknown, expired or revoked"),
        ({"digest": "0" * 64}, protocol.NO_TOKEN, "another program"),
        ({"tokenizer": "0" * 64}, protocol.NO_TOKEN, "another tokenizer"),
    ],
)
def test_a_client_that_does_not_fit_is_refused(host, change, code, why):
    h = host()
    with pytest.raises(Refused, match=why) as caught:
        h.join(**change)
    assert caught.value.code == code and not h.rounds.members


def test_an_invitation_for_one_admits_one_who_may_come_back(host):
    h = host()
    once = h.invitations.create(uses=1)
    first = h.join(token=once)
    with pytest.raises(Refused, match="no uses left"):
        h.join(token=once)
    assert h.join(token=once, resume=first.key).member.number == first.member.number


def test_an_invitation_expires_and_is_taken_back(host, clock):
    from glgpt.federation.invitations import Invitations

    h = host()
    book = Invitations(h.files.folder / "invitations.json", h.files.secret("invitation.key"), h.session.id, clock)
    token = book.create(life=60)
    book.check(token)
    clock.now += 61
    with pytest.raises(GlgptError):
        book.check(token)
    other = book.create(life=60)
    assert book.revoke(digest(other)) and not book.revoke("nothing")
    with pytest.raises(GlgptError):
        book.check(other)


def test_tokens_are_stored_as_hashes_and_signed(host):
    from glgpt.federation.invitations import Invitations

    h = host()
    stored = (h.files.folder / "invitations.json").read_text()
    assert h.token not in stored and digest(h.token) in stored
    assert not any(h.join().key in path.read_text("latin1") for path in h.files.folder.glob("*.jsonl"))
    body, _, signature = h.token.partition(".")
    for forged in (f"{body}.{signature[:-2]}AA", f"{body[:-2]}AA.{signature}", f"{body}."):
        with pytest.raises(GlgptError):
            h.invitations.check(forged)
    other = Invitations(h.files.folder / "invitations.json", h.files.secret("invitation.key"), "f" * 16)
    with pytest.raises(GlgptError):  # the invitation is from another session
        other.check(h.token)
    with pytest.raises(GlgptError):  # a member's token is not a host token
        h.invitations.check(h.token, "host")


def test_a_removed_device_stays_away(host):
    h = host()
    a = h.join()
    assert h.rounds.members.remove(0) and not h.rounds.members.remove(9)
    with pytest.raises(Refused) as caught:
        host().join(resume=a.key)
    assert caught.value.code == protocol.REMOVED


def test_a_full_session_says_so(host):
    h = host(shards=2)
    h.join()
    h.join()
    with pytest.raises(Refused, match="full") as caught:
        h.join()
    assert caught.value.code == protocol.FULL


# -- the checkpoint ----------------------------------------------------------------------


def test_the_checkpoint_keeps_weights_momentum_and_round(host):
    h = host()
    velocity = np.arange(len(h.before), dtype=np.float32)
    h.files.save(Checkpoint(3, h.before * 2, {"velocity": velocity}))
    held = h.files.checkpoint()
    assert held.round == h.files.round_of() == 3
    assert np.array_equal(held.parameters, h.before * 2) and np.array_equal(held.memory["velocity"], velocity)
    path = h.files.folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(GlgptError, match="damaged"):
        h.files.checkpoint()


def test_notes_of_a_round_are_joined_and_a_cut_line_left_out(host):
    h = host()
    h.files.note({"round": 1, "loss": 3.0})
    h.files.note({"round": 1, "validation_loss": 3.5})
    h.files.note({"round": 2, "loss": 2.0})
    with (h.files.folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "lo')
    assert h.files.notes() == [{"round": 1, "loss": 3.0, "validation_loss": 3.5}, {"round": 2, "loss": 2.0}]


def test_an_incomplete_last_line_does_not_swallow_the_next(host):
    """Fails if a line is appended to the remainder of a line that a full disk or a killed gateway left."""
    h = host(quorum=1)
    member = h.join().member
    h.begin()
    updates = h.rounds.spool / f"{h.rounds.open.id}.jsonl"
    for path in (updates, h.files.folder / "rounds.jsonl", h.files.site_folder / members.MEMBERS):
        with path.open("a") as file:
            file.write('{"round": 1, "lo')
    h.send(member)
    h.files.note({"round": 1, "loss": 3.0})
    again = host()
    assert list(again.rounds.open.updates) == [0] and again.rounds.members[0].accepted == 1
    assert again.files.notes() == [{"round": 1, "loss": 3.0}]


@pytest.mark.parametrize("settled", [True, False])
def test_a_settled_round_has_the_same_answer_after_a_crash(host, clock, settled):
    """Fails if a restarted gateway changes a settled round, whose reply may already be sent in part."""
    h = host(quorum=1)
    a = h.join("a")
    h.begin()
    h.send(a.member)
    assert h.rounds.tick() == "close"
    if settled:
        h.rounds.settle()
    again = host()
    assert again.rounds.open.closed == again.rounds.open.settled == settled
    late = again.join("late")
    assert bool(again.rounds.offer(late.member)) != settled


def test_gateways_share_nothing_but_the_session(tmp_path, clock):
    """Fails if two gateways give members the same number (and so the same shard), or accept each other's invitation."""
    first = Host(make_files(tmp_path / "run", gateways=2, quorum=3), clock)
    second = Host(Files(tmp_path / "run", 1), clock)
    numbers = [member.number for host in (first, second, first, second) for member in [host.join().member]]
    assert numbers == [0, 1, 2, 3]
    assert [host.rounds.quorum for host in (first, second)] == [2, 2]
    with pytest.raises(Refused):
        second.join(token=first.token)
    assert Host(Files(tmp_path / "run", 1), clock).rounds.members.keys() == {1, 3}  # after a crash


def test_a_gateway_without_devices_is_not_waited_for(tmp_path, clock):
    host = Host(make_files(tmp_path / "run", gateways=2), clock)
    host.begin()
    assert host.rounds.tick() == ""
    clock.now += 5  # after the grace, before the deadline
    assert host.rounds.tick() == "close"
    assert not host.rounds.open.updates
    assert host.rounds.reply().updates.shape == (0, host.session.parameters)
    assert host.rounds.reply().metrics["clients"] == 0
    host.rounds.settle()
    assert not host.begin()  # a repeated request, since the reply did not arrive
    assert host.rounds.open.settled
    assert host.begin(attempt=1)  # a new attempt, since all gateways together missed the quorum
    member = host.join().member
    clock.now += 5
    assert host.rounds.tick() != "close"
    assert host.rounds.offer(member)
    member.connections = 0  # the device is offline for less than the grace
    assert host.rounds.tick() != "close"
    member.connections = 1
    host.send(member)
    assert host.rounds.tick() == "close"


def test_gateways_with_uneven_devices_reach_the_quorum_together(tmp_path, clock):
    """Fails if a gateway below its share of the quorum blocks the round, or the other gateway takes no more updates."""
    few = Host(make_files(tmp_path / "run", gateways=2, quorum=4), clock)
    many = Host(Files(tmp_path / "run", 1), clock)
    alone, devices = few.join().member, [many.join().member for _ in range(3)]
    for host in (few, many):
        host.begin()
    few.send(alone)
    for member in devices[:2]:
        many.send(member)
    clock.now += 5
    # All devices of `few` have answered, and `many` has its share of the quorum.
    assert [host.rounds.tick() for host in (few, many)] == ["close", "close"]
    for host in (few, many):
        host.rounds.settle()
        assert host.begin(attempt=1)
    assert [len(host.rounds.open.updates) for host in (few, many)] == [1, 2]
    assert Host(Files(tmp_path / "run", 1), clock).rounds.open.attempt == 1  # survives a crash
    assert many.rounds.offer(devices[2])
    assert not many.rounds.offer(devices[0])
    assert many.rounds.tick() == ""  # no new update yet
    many.send(devices[2])
    assert many.rounds.tick() == "close"
    assert many.rounds.reply().metrics["clients"] == 3


def test_a_round_of_two_gateways_is_one_line(tmp_path):
    files = make_files(tmp_path / "run", gateways=2)
    one = {"round": 1, "site": 0, "clients": 1, "tokens": 100, "loss": 2.0, "seconds": 3.0, "devices": [1]}
    one["streamed"] = False
    files.note(one | {"loss": 9.0})  # the next line replaces this one: the round was repeated
    files.note(one)
    files.note(one | {"site": 1, "clients": 2, "tokens": 300, "loss": 1.0, "seconds": 2.0, "devices": [2, 3]})
    files.note({"round": 1, "loss": 1.25, "validation_loss": 1.5})  # for both gateways together
    (line,) = files.notes()
    assert (line["clients"], line["tokens"], line["loss"], line["seconds"]) == (3, 400, 1.25, 3.0)
    assert (line["round"], line["devices"], line["validation_loss"]) == (1, [1, 2, 3], 1.5)


# -- the spool ----------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["loss", "norm", "short", "nan", "fields"])
@pytest.mark.parametrize("settled", [True, False])
def test_a_spooled_update_that_cannot_be_settled_is_set_aside(host, damage, settled, caplog):
    """Fails if a damaged update stays in the spool (the folder of received updates), and its round fails forever."""
    h = host()
    members = [h.join().member for _ in range(2)]
    h.begin()
    for member in members:
        h.send(member)
    assert h.rounds.tick() == "close"
    if settled:
        h.rounds.settle()
    spooled = h.rounds.open.updates[0]
    lines = h.rounds.spool / f"{h.rounds.open.id}.jsonl"
    first, second = lines.read_text().splitlines()
    values = np.fromfile(spooled.file, "<f4")
    if damage == "short":
        values[:-3].tofile(spooled.file)
    elif damage == "nan":
        np.full_like(values, np.nan).tofile(spooled.file)
    else:
        changed = {"loss": {"loss": 1e308}, "norm": {"norm": 1e999}, "fields": {"member": None}}[damage]
        lines.write_text(json.dumps(json.loads(first) | changed) + "\n" + second + "\n")
    again = host()
    assert list(again.rounds.open.updates) == [1] and not again.rounds.open.closed
    assert "quarantine" in caplog.text
    assert [p.name for p in (h.files.site_folder / "quarantine").iterdir()] == [spooled.file.name]
    back = again.rounds.members[0]
    back.connections = 1
    again.rounds.offer(back)
    again.send(back)
    assert again.rounds.tick() == "close"
    assert math.isfinite(again.rounds.figures()["loss"]) and len(again.rounds.reply().updates) == 2
    assert len(host().rounds.open.updates) == 2


# -- changes that are too large ----------------------------------------------------------


def test_a_change_of_enormous_norm_is_refused(host):
    """Regression: one finite update of norm 2.7e41 was accepted, and the model was lost."""
    h = host(dtype="exact")
    a, b = h.join().member, h.join().member
    h.begin()
    with pytest.raises(Rejected, match="norm is 5"):
        h.send(a, np.full_like(h.before, 1e37))
    with pytest.raises(Rejected, match="the maximum for 4 steps"):
        h.send(a, 4.5)
    assert a.strikes == 2 and a.said.startswith("rejected: the change's norm")
    h.send(b, 0.5)
    assert list(h.rounds.open.updates) == [b.number]


def test_a_first_round_takes_only_changes_that_its_optimizer_can_make(host):
    """Regression: round 1 accepted a change of up to four times the parameters' norm, which ruined the start."""
    h = host(quorum=1, settings=dataclasses.replace(make_session().settings, lr=1e-2, min_lr=1e-3))
    a = h.join().member
    h.begin()
    with pytest.raises(Rejected, match="the maximum for 4 steps"):
        h.send(a, 0.5)
    h.send(a, 0.03)  # nearly the sum of the four learning rates


def test_adamw_changes_no_more_than_the_limit():
    """Fails if the limit refuses an honest client, even for gradients that make AdamW's steps as long as possible."""
    rng = np.random.default_rng(5)
    for betas in ((0.9, 0.95), (0.9, 0.999), (0.5, 0.9), (0.1, 0.95)):
        rates = tuple(np.linspace(0.1, 1, 40))
        limits = rules.StepLimits(100, rates, betas, 0.1)
        for kind in ("random", "equal", "late", "growing", "worst"):
            w = start = rng.normal(size=100)
            m, v = np.zeros(100), np.zeros(100)
            for t, rate in enumerate(rates, 1):
                g = {
                    "random": rng.normal(size=100),
                    "equal": np.ones(100),
                    "late": np.full(100, float(t == 30)),
                    "growing": np.full(100, 10.0**t),
                    "worst": np.full(100, (betas[0] / betas[1]) ** -t),
                }[kind]
                m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
                ratio = m / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + 1e-8)
                w = w - rate * (ratio + 0.1 * w)
            assert rules.norm(w - start) <= limits.largest(rules.norm(start), 40)
    assert rules.StepLimits(100, (1.0,), (0.99, 0.9), 0.0).largest(1.0, 1) == math.inf


def test_a_change_is_compared_with_those_of_earlier_rounds(host):
    h = host(quorum=1)
    a = h.join().member
    h.files.note({"round": 1, "clients": 1, "devices": [{"norm": 0.1 * rules.norm(h.before), "steps": 4}]})
    h.begin(2)
    with pytest.raises(Rejected, match="norm"):
        h.send(a, 0.6)
    h.send(a, 0.4)


def test_the_norm_that_a_change_may_have():
    first = rules.NormLimits(10.0)
    assert first.largest(1) == first.largest(99) == 40
    recent = ((1.0, 10), (1.0, 10), (1.0, 10), (1e41, 10))  # the limit uses the median, so an outlier counts little
    assert rules.NormLimits(10.0, recent).largest(10) == pytest.approx(5)
    assert rules.NormLimits(10.0, recent).largest(20) == pytest.approx(10)  # twice the steps
    assert rules.NormLimits(10.0, ((0.3, 1),)).largest(25) == pytest.approx(37.5)  # the earlier change took one step
    assert rules.NormLimits(10.0, ((1e-9, 1),)).largest(25) == pytest.approx(1)  # the earlier change was tiny
    with pytest.raises(GlgptError):
        first.check(float("nan"), 1)
    lines = [
        {"round": n, "devices": [{"norm": float(n), "steps": 2}, {"norm": None, "steps": 1}]} for n in range(1, 30)
    ]
    assert rules.recent_norms([*lines, {"round": 30}], 20) == tuple((float(n), 2) for n in range(10, 20))


def test_parameters_that_are_not_finite_are_not_saved(host):
    h = host()
    bad = h.before.copy()
    bad[3] = np.inf
    with pytest.raises(NotFiniteError, match="round 1: parameters"):
        h.files.save(Checkpoint(1, bad, {}))
    with pytest.raises(NotFiniteError, match="velocity"):
        h.files.save(Checkpoint(1, h.before, {"velocity": bad}))
    assert h.files.round_of() == 0


def test_the_two_checkpoints_before_the_last_are_kept(host):
    h = host()
    for number in (1, 2, 3, 3, 4):  # a repeated round does not count twice
        h.files.save(Checkpoint(number, h.before + np.float32(number), {}))
    assert h.files.kept_rounds() == [2, 3]
    h.files.go_back(2)
    held = h.files.checkpoint()
    assert held.round == 2 and np.array_equal(held.parameters, h.before + np.float32(2))
    assert h.files.kept_rounds() == []


# -- seats -------------------------------------------------------------------------------


def leave(host, peer):
    peer.member.connections = 1
    host.rounds.members.disconnected(peer.member)


def test_a_link_cannot_fill_a_session_for_good(host, clock):
    """Regression: clients that had opened a link once and then left kept all 256 seats."""
    h = host(shards=2)
    first, second = h.join("first"), h.join("second")
    with pytest.raises(Refused, match="full"):
        h.join()
    leave(h, first)
    clock.now += 1
    leave(h, second)
    third = h.join("third")  # takes the seat of the member that left first
    seated = h.rounds.members.seated
    assert third.member.number == 0 and not seated(first.member) and seated(second.member)
    with pytest.raises(Rejected, match="place"):
        h.rounds.accept(first.member, h.update()[0], h.before, 1.0)
    again = h.join("first", resume=first.key)  # "first" is now a new member
    assert again.member.number == 1 and again.key != first.key
    assert host().rounds.members[1].name == "first"


def test_who_trained_keeps_a_seat_for_an_hour(host, clock):
    h = host(shards=2, quorum=1)
    a, b = h.join("a"), h.join("b")
    h.begin(1)
    h.send(a.member)
    leave(h, a)
    clock.now += 3601
    with pytest.raises(Refused, match="full"):  # a's update counts in the open round
        h.join()
    h.before = h.before + np.float32(0.1)
    h.begin(2)
    c = h.join("c")
    assert c.member.number == a.member.number
    h.rounds.members.connected(a.member)
    assert h.rounds.members.seated(b.member)


def test_who_sends_nothing_for_some_rounds_gives_way(host):
    h = host(shards=1)
    idle = h.join("idle")
    for number in (1, 2, 3):
        h.before = h.before + np.float32(0.1)
        h.begin(number)
        with pytest.raises(Refused, match="full"):
            h.join()
    h.before = h.before + np.float32(0.1)
    h.begin(4)
    assert h.join("new").member.number == idle.member.number and not h.rounds.members.seated(idle.member)


def test_an_invitation_for_one_is_given_back_with_its_seat(host):
    h = host(shards=1)
    once = h.invitations.create(uses=1)
    first = h.join(token=once)
    leave(h, first)
    second = h.join()
    leave(h, second)
    assert h.join(token=once, resume=first.key).key != first.key
    h.rounds.members.remove(0)
    with pytest.raises(Refused, match="no uses left"):  # no use is restored for a removed device
        h.join(token=once)


def test_a_removed_device_stays_away_when_its_seat_is_anothers(host):
    h = host(shards=1)
    gone = h.join("gone")
    h.rounds.members.remove(0)
    assert h.join("new").member.number == 0
    for again in (h, host(), host()):  # also after restarts, which rewrite the file of members
        with pytest.raises(Refused) as caught:
            again.join(resume=gone.key)
        assert caught.value.code == protocol.REMOVED


def test_a_revoked_invitation_turns_out_who_joined_by_it(host):
    h = host()
    bad, good = h.invitations.create(), h.invitations.create()
    a, b, c = h.join("a", token=bad), h.join("b", token=bad), h.join("c", token=good)
    h.begin()
    assert h.rounds.members.knows(a.key)
    assert h.rounds.members.revoke("nothing") is None
    assert h.rounds.members.revoke(digest(bad)) == [a.member, b.member]
    assert not h.rounds.members.knows(a.key) and h.rounds.members.knows(c.key)
    assert h.rounds.offer(a.member) is None
    with pytest.raises(Rejected, match="revoked"):
        h.send(a.member)
    with pytest.raises(Refused):
        host().join(token=bad, resume=a.key)
    once = h.invitations.create(uses=1)
    back = h.join(token=once, resume=a.key)  # a new invitation restores the same member
    assert back.member is a.member and not a.member.aside and h.rounds.offer(a.member)
    with pytest.raises(Refused, match="no uses left"):
        h.join(token=once, resume=b.key)


def test_the_file_of_members_does_not_grow_for_ever(host, monkeypatch):
    monkeypatch.setattr(members, "MEMBER_LINES", 10)
    h = host()
    a, gone = h.join("a"), h.join("gone")
    h.rounds.members.remove(gone.member.number)
    for i in range(50):
        h.join(f"a{i}", resume=a.key)
        h.join(f"a{i}", resume=a.key)  # without a change, nothing is written
    assert len((h.files.site_folder / "members.jsonl").read_text().splitlines()) < 20
    again = host()
    assert again.rounds.members[0].name == "a49" and again.rounds.members[1].aside == "removed"


def test_the_status_shows_steps_of_the_open_round_alone(host):
    h = host()
    a = h.join("a")

    def shown():
        (member,) = h.rounds.status()["members"]
        return member["step"], member["answered"]

    assert shown() == (0, False)
    h.begin()
    a.member.step = 3
    assert shown() == (3, False)
    h.send(a.member)
    assert shown() == (4, True)
    h.files.pause(True)  # no device is offered the next round
    h.begin(2)
    assert shown() == (0, False)
