"""Messages: found again however a stream is cut, bounded, and refused when they are not what may come."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Mapping
from typing import Any

import pytest

from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.messages import FROM_AGENT, FROM_LAUNCHER, MOST, MOST_UNPROVEN, MessageError
from gridtf.run.rundir import Record
from tests.support.streams import carried

HEX = "5e" * 32
HELLO: Record = {"format": messages.FORMAT, "host": "n1", "environment": False, "challenge": HEX, "proof": HEX}
WHO: Record = {"host": "n1", "pid": 7, "start": 1, "boot": "b", "began": 1.5}
ERROR: Record = {"what": "no free GPU", "why": "all are in use", "hint": ""}
RANK: Record = {
    "host": "n1",
    "hostname": "n1",
    "address": "n1",
    "boot": "b",
    "port": 4711,
    "granted": ["0"],
    "cpus": [0, 1],
    "step_gpus": 1,
    "master_port": 4712,
}
BOTH = (messages.ALIVE, messages.ERROR)
LAUNCHER_SAYS: dict[str, Record] = {
    messages.CHALLENGE: {"challenge": HEX},
    messages.WELCOME: {"proof": HEX},
    messages.ENVIRONMENT: {"environ": {"PATH": "/bin", "ODD": "a\nb\udcff"}},
    messages.RENDEZVOUS: {"text": '{"worker": ["n1:1"]}', "master_addr": "n1", "master_port": 2, "outside": {}},
    messages.LAUNCHER: WHO,
    messages.STOP: {"state": "FAILED", "reason": "Ü", "task": None},
    messages.ERROR: ERROR,
    messages.ALIVE: {},
}
AGENT_SAYS: dict[str, Record] = {
    messages.HELLO: HELLO,
    messages.HOST: {"host": "n1", "address": "n1", "ports": {"worker:0": 4711}, "master_port": 4712},
    messages.STATE: {"tasks": {"worker:0": {"state": "RUNNING", "exit": None}}, "over": False},
    messages.SAMPLE: {
        "sample": {
            "time": 5.0,
            "host": "n1",
            "cpus": 8,
            "cpu": 2.5,
            "memory": 1 << 30,
            "memory_total": 1 << 34,
            "received": 0.0,
            "sent": 10.5,
            "gpus": {"0": {"use": 90.0, "memory": 5, "memory_total": 9, "power": 70.5}},
            "tasks": {
                "worker:0": {
                    "cpu": 2.5,
                    "memory": 1 << 30,
                    "read": 0.0,
                    "written": 5.5,
                    "processes": 2,
                    "threads": {"R": 1, "S": 9},
                    "step": 12,
                    "values": {"loss": 0.5},
                    "rate": 1.5,
                }
            },
        },
        "logs": {"worker:0": [[5.25, 120], [5.5, 240]]},
    },
    messages.GONE: {"what": "it was killed", "why": "", "hint": ""},
    messages.RANK: RANK,
    messages.ERROR: {**ERROR, "host": "n1"},
    messages.ALIVE: {},
}
EACH = [(FROM_LAUNCHER, *said) for said in LAUNCHER_SAYS.items()] + [(FROM_AGENT, *said) for said in AGENT_SAYS.items()]


def test_every_kind_of_message_has_an_example_here() -> None:
    assert {*LAUNCHER_SAYS, messages.PLAN} == set(FROM_LAUNCHER)  # of plans: test_rendezvous_plan.py
    assert set(AGENT_SAYS) == set(FROM_AGENT)


@pytest.mark.parametrize(("kinds", "kind", "content"), EACH)
def test_message_comes_out_as_it_went_in(kinds: Mapping[str, Any], kind: str, content: Record) -> None:
    assert carried(kinds, kind, content) == (kind, content)


# --- framing


def taken(received: bytearray, most: int = MOST) -> list[bytes]:
    found = []
    while (message := messages.take(received, most)) is not None:
        found.append(message)
    return found


def test_messages_are_found_wherever_the_stream_is_cut() -> None:
    said: list[tuple[str, Record]] = [("a", {"b": "Ü"}), ("alive", {}), ("c", {"d": [1, 2, None]})]
    stream = b"".join(messages.encoded(kind, content) for kind, content in said)
    for cut in range(len(stream) + 1):
        received = bytearray(stream[:cut])
        found = taken(received)
        received += stream[cut:]
        found += taken(received)
        assert [tuple(json.loads(message)) for message in found] == said
        assert not received


def test_messages_are_found_in_a_stream_that_comes_byte_by_byte() -> None:
    stream, received, found = messages.encoded("state", {"tasks": {}}) * 3, bytearray(), list[bytes]()
    for byte in stream:
        received.append(byte)
        found += taken(received)
    assert found == [b'["state",{"tasks":{}}]'] * 3


def test_message_of_no_bytes_is_taken_and_refused() -> None:
    received = bytearray(4)
    assert messages.take(received, MOST) == b""
    assert not received
    with pytest.raises(MessageError, match="not JSON"):
        messages.decoded(b"", FROM_AGENT)


@pytest.mark.parametrize("most", [MOST_UNPROVEN, MOST])
def test_message_that_is_announced_too_long_is_refused_before_it_has_come(most: int) -> None:
    assert messages.take(bytearray(most.to_bytes(4, "big")), most) is None
    with pytest.raises(MessageError, match=f"a message of {most + 1} bytes, where at most {most} are allowed"):
        messages.take(bytearray((most + 1).to_bytes(4, "big")), most)
    with pytest.raises(MessageError, match="a message of 4294967295 bytes"):
        messages.take(bytearray(b"\xff" * 4), most)


def test_everything_said_before_the_proof_fits_into_the_bound_for_strangers() -> None:
    longest = {**HELLO, "format": 10**6, "host": "n" * 255, "environment": False}
    for kind, content in (
        (messages.HELLO, longest),
        *((kind, LAUNCHER_SAYS[kind]) for kind in ("challenge", "welcome")),
    ):
        assert len(messages.encoded(kind, content)) < MOST_UNPROVEN


# --- what may come


@pytest.mark.parametrize(("kinds", "kind", "content"), [each for each in EACH if each[1] not in BOTH])
def test_message_of_the_other_side_is_refused(kinds: Mapping[str, Any], kind: str, content: Record) -> None:
    other = FROM_AGENT if kinds is FROM_LAUNCHER else FROM_LAUNCHER
    with pytest.raises(MessageError, match=f"a message of kind '{kind}', where .* is expected"):
        messages.decoded(json.dumps([kind, content]).encode(), other)


@pytest.mark.parametrize(("kinds", "kind", "content"), [each for each in EACH if each[2]])
def test_message_without_one_of_its_values_or_with_another_type_is_refused(
    kinds: Mapping[str, Any], kind: str, content: Record
) -> None:
    nothing: tuple[Any, ...] = (None, 3, "x", [], True, [content])
    for odd in nothing:
        with pytest.raises(MessageError, match=f"a damaged message {kind}: "):
            messages.decoded(json.dumps([kind, odd]).encode(), kinds)
    damaged = []
    for name in content:
        if name in kinds[kind]:
            damaged.append((name, {key: value for key, value in content.items() if key != name}))
        damaged.append((name, {**content, name: [[3.5]]}))
    for name, less in damaged:
        with pytest.raises(MessageError, match=f"a damaged message {kind}: .*{name}"):
            messages.decoded(json.dumps([kind, less]).encode(), kinds)


@pytest.mark.parametrize("name", ["challenge", "proof"])
@pytest.mark.parametrize("odd", ["", "5e" * 31, "5E" * 32, "5e" * 32 + "\n", "zz" * 32, "5e" * 33])
def test_challenges_and_proofs_have_64_hexadecimal_digits(name: str, odd: str) -> None:
    with pytest.raises(MessageError, match=name):
        messages.decoded(json.dumps([messages.HELLO, {**HELLO, name: odd}]).encode(), FROM_AGENT)


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\xff\xfe",
        b"null",
        b"{}",
        b'["alive"]',
        b'["alive",{},{}]',
        b"[1,{}]",
        b"[[],{}]",
        b'["none",{}]',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 100_000,
        b'["\xc3\x28",{}]',
    ],
)
def test_rubbish_is_refused_in_one_short_line(rubbish: bytes) -> None:
    for kinds in (FROM_AGENT, FROM_LAUNCHER):
        with pytest.raises(MessageError) as error:
            messages.decoded(rubbish, kinds)
        assert "\n" not in error.value.what
        assert len(error.value.what) < 300


@pytest.mark.thorough
def test_long_message_is_compressed_and_a_bomb_is_refused() -> None:
    members = [f"node{number:04}.example:20{number % 1000:03}" for number in range(5000)]
    cluster: Record = {"text": json.dumps({"worker": members}), "master_addr": "n1", "master_port": 2, "outside": {}}
    sent = messages.encoded(messages.RENDEZVOUS, cluster)
    assert len(sent) < len(cluster["text"]) / 4
    assert messages.decoded(sent[4:], FROM_LAUNCHER) == (messages.RENDEZVOUS, cluster)
    for damaged, why in (
        (sent[4:-9], "a part of one"),
        (sent[4:9] + sent[:99], "damaged"),
        (zlib.compress(bytes(MOST + 1)), "more than"),
    ):
        with pytest.raises(MessageError, match=why):
            messages.decoded(damaged, FROM_LAUNCHER)


def test_random_bytes_are_never_a_message() -> None:
    chance, refused = random.Random(13), 0
    for _ in range(2000):
        received = bytearray(chance.randbytes(chance.randrange(1200)))
        if chance.random() < 0.5:
            received[:3] = b"\0\0\0"  # as short as it can be announced
        try:
            message = messages.take(received, MOST_UNPROVEN)
            if message is not None:
                messages.decoded(message, FROM_AGENT)
                raise AssertionError(message)
        except MessageError:
            refused += 1
    assert refused > 1500


# --- the proof


def test_proof_is_bound_to_all_that_it_is_about() -> None:
    about = (b"s" * 32, "agent", "n1", "c" * 64, "a" * 64)
    right = messages.proof(*about)
    assert messages.proves(messages.proof(*about), right)
    others: list[tuple[Any, ...]] = [
        (b"S" * 32, *about[1:]),
        (about[0], "launcher", *about[2:]),
        (*about[:2], "n2", *about[3:]),
        (*about[:3], "d" * 64, about[4]),
        (*about[:4], "b" * 64),
        (*about[:3], about[4], about[3]),
    ]
    assert not any(messages.proves(messages.proof(*other), right) for other in others)


def test_proof_changes_with_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    about = (b"s" * 32, "agent", "n1", "c" * 64, "a" * 64)
    before = messages.proof(*about)
    monkeypatch.setattr(messages, "FORMAT", messages.FORMAT + 1)
    assert messages.proof(*about) != before


def test_proof_takes_host_names_of_any_bytes() -> None:
    messages.proof(b"s", "agent", "n\udcff", "c", "a")
