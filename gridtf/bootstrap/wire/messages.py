"""The messages between the launcher and the agents of an attempt: their kinds, and their form on a stream. Pure.

A message is the length of what follows (four bytes, the highest first) and a JSON array ``[kind, content]``, which is
compressed (zlib) where it is long: the cluster of thousands of tasks goes to every host. Both sides first prove that
they know the secret of the attempt; until then a message may have few bytes only.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gridtf.errors import GridtfError
from gridtf.run import recordtypes
from gridtf.run.rundir import Record

FORMAT = 7  # of all of this; changes with every change that another version of gridtf would not understand

# The kinds of messages. From the launcher:
CHALLENGE = "challenge"  # the first one: prove who you are
WELCOME = "welcome"  # the launcher's own proof
ENVIRONMENT = "environment"  # of the job script, for an agent that has not inherited it
PLAN = "plan"  # the part of plan.json that concerns this host
RENDEZVOUS = "rendezvous"  # what rendezvous.json has
LAUNCHER = "launcher"  # which process the launcher is, and whether a checkpoint was requested
STOP = "stop"  # end the tasks
# From an agent:
HELLO = "hello"  # the answer to the challenge, with a challenge of its own
HOST = "host"  # addresses, ports, GPUs and versions
STATE = "state"  # of the tasks
GONE = "gone"  # from the agent supervisor: why the agent has ended
RANK = "rank"  # from a rank of gridtf_join, to rank 0: its address, port and GPUs
SAMPLE = "sample"  # what the host and its tasks use, and when logs have grown
# From both:
ERROR = "error"  # among ranks of gridtf_join: why this one cannot join
ALIVE = "alive"  # nothing has changed

_Hex = re.compile("[0-9a-f]{64}")
# of a process that can be found again, continued and ended by it
_Launcher = {
    "host": str,
    "pid": recordtypes.Pid,
    "start": (recordtypes.Count, None),
    "boot": str,
    "began": float,
    "checkpoint?": bool,
}
_Hello = {"format": int, "host": str, "environment": bool, "challenge": _Hex, "proof": _Hex}
FROM_LAUNCHER: Mapping[str, Any] = MappingProxyType(
    {
        CHALLENGE: {"challenge": _Hex},
        WELCOME: {"proof": _Hex},
        ENVIRONMENT: recordtypes.Environment,
        PLAN: recordtypes.Plan,
        RENDEZVOUS: recordtypes.Rendezvous,
        LAUNCHER: _Launcher,
        STOP: recordtypes.Stop,
        ERROR: recordtypes.HostError,
        ALIVE: {},
    }
)
FROM_AGENT: Mapping[str, Any] = MappingProxyType(
    {
        HELLO: _Hello,
        HOST: recordtypes.HostRecord,
        STATE: recordtypes.HostState,
        GONE: recordtypes.Gone,
        SAMPLE: {"sample?": recordtypes.Sample, "logs": {str: [[float]]}},
        RANK: recordtypes.RankRecord,
        ERROR: recordtypes.HostError,
        ALIVE: {},
    }
)

_LENGTH = 4
MOST_UNPROVEN = 1024  # bytes of a message from a process that has not proved yet that it belongs to the attempt
_LONG = 1 << 16  # bytes from which a message is compressed
_ZLIB = b"x"  # the first byte of a compressed message; that of a JSON array is a bracket
MOST = 64 << 20  # bytes of any other: the cluster of 100,000 tasks has 5 MB


class MessageError(GridtfError):
    """A message cannot be read, or is not what this side of the stream may be sent."""


def encoded(kind: str, content: Record) -> bytes:
    """A message as it is sent."""
    text = json.dumps([kind, content], separators=(",", ":")).encode()
    if len(text) >= _LONG:
        import zlib  # most agents and launchers need it never

        text = zlib.compress(text, 1)
    return len(text).to_bytes(_LENGTH, "big") + text


def take(received: bytearray, most: int) -> bytes | None:
    """Remove the first message from what was received.

    Args:
        received: What was received and not taken yet; is changed.
        most: Bytes that a message may have.

    Returns:
        The message, without its length; None while it is not complete.

    Raises:
        MessageError: It is longer than allowed.
    """
    if len(received) < _LENGTH:
        return None
    length = int.from_bytes(received[:_LENGTH], "big")
    if length > most:
        raise MessageError(f"a message of {length} bytes, where at most {most} are allowed")
    if len(received) < _LENGTH + length:
        return None
    message = bytes(received[_LENGTH : _LENGTH + length])
    del received[: _LENGTH + length]
    return message


def decoded(message: bytes, kinds: Mapping[str, Any]) -> tuple[str, Record]:
    """Parse a message.

    Args:
        message: As take returned it.
        kinds: FROM_LAUNCHER or FROM_AGENT, with those of starters and features: kind -> the form of its content.

    Returns:
        Its kind and content.

    Raises:
        MessageError: It is not such a message.
    """
    try:
        parsed = json.loads(_inflated(message) if message[:1] == _ZLIB else message)
    except (ValueError, RecursionError):
        raise MessageError("a message that is not JSON") from None
    if not (isinstance(parsed, list) and len(parsed) == 2 and isinstance(parsed[0], str)):
        raise MessageError("a message without a kind")
    kind, content = parsed
    if kind not in kinds:
        raise MessageError(f"a message of kind {kind[:20]!r}, where {' or '.join(kinds)} is expected")
    if wrong := recordtypes.checked(kinds[kind])(content):
        raise MessageError(f"a damaged message {kind}: {wrong}")
    return kind, content


def _inflated(message: bytes) -> bytes:
    import zlib

    inflating = zlib.decompressobj()
    try:
        text = inflating.decompress(message, MOST)
    except zlib.error:
        raise MessageError("a message that is damaged") from None
    if not inflating.eof:
        raise MessageError(f"a message of more than {MOST} bytes, or a part of one")
    return text


def proof(secret: bytes, side: str, host: str, challenge: str, answer: str) -> str:
    """What only a process that knows the secret can compute.

    Args:
        secret: The secret of the attempt.
        side: ``agent`` or ``launcher``: the proof of one is of no use to the other.
        host: The host of the agent.
        challenge: The launcher's challenge.
        answer: The agent's.
    """
    text = "\0".join((str(FORMAT), side, host, challenge, answer))
    return hmac.digest(secret, text.encode(errors="surrogateescape"), "sha256").hex()


def proves(given: str, expected: str) -> bool:
    """Whether a proof is right, in a time that tells nothing about where it differs."""
    return hmac.compare_digest(given, expected)
