"""What the members of an averaging group tell each other at an exchange, and what follows from it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from gridtf.errors import GridtfError
from gridtf.text import some
from gridtf.values import Value

_BITS = 24  # integers up to 2^24 are exact in float32
_NOTHING = "missing"


class TooLateError(Exception):
    """This program has already used TensorFlow."""


class LostError(Exception):
    """TensorFlow could not carry out a collective operation; the message is TensorFlow's."""


class Member(Value):
    """What one member tells the others.

    Attributes:
        weight: Weight of its values in the average; negative: one of them is NaN or infinite, as the link has seen.
        done: Whether its data have ended.
        wish: Whether a checkpoint was requested from it.
        signature: Of its variables; see signature().
        size: Bytes of its description of them.
    """

    weight: float = 0.0
    done: bool = False
    wish: bool = False
    signature: int = 0
    size: int = 0


TYPES = ("chief", "master", "worker")  # the types of tasks that are members, in rank order
SLOTS = 6  # numbers per member
WEIGHT = 0  # the slot of the weight


def encode(member: Member, rank: int, world: int) -> list[float]:
    """Write a member into its slots of a vector; the sum of the vectors of all members has everybody's.

    Args:
        member: What it tells.
        rank: Its rank in the group.
        world: Number of members.

    Returns:
        ``world`` times SLOTS numbers, each exact in float32 (the weight nearly): 0 in the slots of other members.
    """
    high, low = divmod(member.signature, 1 << _BITS)
    own = [member.weight, float(member.done), float(member.wish), float(high), float(low), float(member.size)]
    return [0.0] * (SLOTS * rank) + own + [0.0] * (SLOTS * (world - rank - 1))


def decode(vector: Sequence[float]) -> list[Member]:
    """Read the members from the sum of their vectors, in rank order."""
    slots = [vector[start : start + SLOTS] for start in range(0, len(vector), SLOTS)]
    return [
        Member(weight, done > 0, wish > 0, (round(high) << _BITS) + round(low), round(size))
        for weight, done, wish, high, low, size in slots
    ]


def signature(description: bytes) -> int:
    """A hash of the description of variables, of 48 bits."""
    return int.from_bytes(sha256(description).digest()[: _BITS // 4], "big")


def is_due(steps: int, elapsed: float, every: int, seconds: float | None) -> bool:
    """Whether a member takes part in the next exchange now.

    By time, each member decides for itself: an exchange ends for all members at the same moment, and one that takes
    part earlier waits for the others.

    Args:
        steps: Since the last exchange.
        elapsed: Seconds since the last exchange.
        every: Steps between exchanges.
        seconds: Seconds between exchanges, in place of steps; None: by steps.
    """
    return steps >= every if seconds is None else elapsed >= seconds


class Interval:
    """From one exchange of a member to the next.

    Args:
        every: Steps between exchanges.
        seconds: Seconds between exchanges, in place of steps; None: by steps.
        clock: Returns seconds.

    Attributes:
        weight: Of the steps since the last exchange.
    """

    def __init__(
        self, every: int = 20, seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every, self._seconds, self._clock = every, seconds, clock
        self._steps = 0
        self._last = 0.0  # when the last exchange was
        self.weight = 0.0

    def add(self, steps: int, weight: float) -> bool:
        """Count steps.

        Args:
            steps: How many.
            weight: Of all of them together.

        Returns:
            Whether the member takes part in the next exchange now.
        """
        self._steps += steps
        self.weight += weight
        return is_due(self._steps, self._clock() - self._last, self._every, self._seconds)

    def begin(self) -> None:
        """Begin anew, after an exchange."""
        self._steps, self.weight, self._last = 0, 0.0, self._clock()


def difference(descriptions: Mapping[str, str]) -> GridtfError:
    """Make the error for members with different variables.

    Args:
        descriptions: Member -> one line per variable, such as ``dense/kernel float32 [64, 10]``; in rank order. At
            least two differ.
    """
    (first, expected), *others = [(name, text.splitlines()) for name, text in descriptions.items()]
    other, found = next((name, lines) for name, lines in others if lines != expected)
    longest = max(len(expected), len(found))
    pairs = zip(_padded(expected, longest), _padded(found, longest), strict=True)
    number, mine, theirs = next((number, *pair) for number, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    return GridtfError(
        f"{first} and {other} have attached different models",
        why=f"variable {number} is {mine} at {first}, {theirs} at {other}",
        hint="build the model by the same lines in every task, and no other model before it",
    )


def _padded(lines: list[str], length: int) -> list[str]:
    return lines + [_NOTHING] * (length - len(lines))


def diverged(culprits: list[str], steps: int) -> GridtfError:
    """Make the error for values that would make those of all members NaN or infinite.

    Args:
        culprits: The members that have them.
        steps: How many steps this member had done.
    """
    who, whose = some(culprits, most=3), "its share" if len(culprits) == 1 else "their shares"
    return GridtfError(
        f"averaging after step {steps}: {who} {'has' if len(culprits) == 1 else 'have'} diverged",
        why="there is NaN or infinity among the variables, which all members would get",
        hint=f"look at {whose} of the data; a smaller learning rate or clipped gradients make smaller steps",
    )


def failure(text: str, own: str, members: Sequence[str], steps: int) -> GridtfError:
    """Make the error for an exchange that TensorFlow could not carry out.

    Args:
        text: TensorFlow's message.
        own: This member.
        members: All members.
        steps: How many steps this member had done.
    """
    lost = [name for name in _tasks(text, members) if name != own]
    cause = re.search("(?<=aborted by: ).+", text) or re.search(".+", text)
    return GridtfError(
        f"{own}: averaging after step {steps} failed" + (f": {lost[0]} does not respond" if lost else ""),
        why=f"TensorFlow: {cause[0].strip()[:200]}" if cause else "",
        hint=f"see `gridtf logs JOB --task {lost[0]}`: did it fail, or end without group.finish()?" if lost else "",
    )


def _tasks(text: str, members: Sequence[str]) -> list[str]:
    """The members that a message of TensorFlow names, as gridtf names them."""
    found = [f"{kind}:{index}" for kind, index in re.findall(r"/job:(\w+)/replica:\d+/task:(\d+)", text)]
    known = {name.replace("master:", "chief:"): name for name in members}  # strategies know no master
    return [known[name] for name in found if name in known]
