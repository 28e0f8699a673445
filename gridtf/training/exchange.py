"""What the members of an averaging group tell each other at an exchange, and what follows from it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest

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
        token: Of an exchange: what it may be kept under in a checkpoint, as the leader chooses; of others any, 0 where
            they cannot keep their state. When a model is attached: of the checkpoint that was restored; 0: none.
        due: Whether the leader saves after this exchange; of members whose data have ended, whether it is the first one
            since their last step.
    """

    weight: float = 0.0
    done: bool = False
    wish: bool = False
    signature: int = 0
    size: int = 0
    token: int = 0
    due: bool = False


TYPES = ("chief", "master", "worker")  # the types of tasks that are members, in rank order
SLOTS = 8  # numbers per member
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
    flags = [float(member.done), float(member.wish), float(member.due)]
    own = [member.weight, *flags, float(high), float(low), float(member.size), float(member.token)]
    return [0.0] * (SLOTS * rank) + own + [0.0] * (SLOTS * (world - rank - 1))


def decode(vector: Sequence[float]) -> list[Member]:
    """Read the members from the sum of their vectors, in rank order."""
    slots = [vector[start : start + SLOTS] for start in range(0, len(vector), SLOTS)]
    return [
        Member(weight, done > 0, wish > 0, (round(high) << _BITS) + round(low), round(size), round(token), due > 0)
        for weight, done, wish, due, high, low, size, token in slots
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
        steps: Since the last exchange.
        weight: Of these steps.
    """

    def __init__(
        self, every: int = 20, seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every, self._seconds, self._clock = every, seconds, clock
        self.steps = 0
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
        self.steps += steps
        self.weight += weight
        return self.due(self.steps, self._clock() - self._last)

    def due(self, steps: int, elapsed: float) -> bool:
        """Whether a member takes part in the next exchange after so many steps, and seconds, since the last one."""
        return is_due(steps, elapsed, self._every, self._seconds)

    def begin(self) -> None:
        """Begin anew, after an exchange."""
        self.steps, self.weight, self._last = 0, 0.0, self._clock()


# Who has learned; a hash of words; or of numbers a sum, weighted by their places, and the sum of their sizes.
Learned = tuple[str, str, float, float]
BESIDE = " beside the model"  # the end of the names of layers that are not in it
_ALIKE = 1e-4  # of their size; the same mean differs in its last digits on other hosts


def describe(variables: Sequence[str], learned: Sequence[Learned]) -> bytes:
    """Write down what must be the same in all members.

    Args:
        variables: One line for each, such as ``dense/kernel float32 [64, 10]``.
        learned: What their layers have learned of the data.
    """
    return json.dumps([learned, variables]).encode()


def difference(descriptions: Mapping[str, str]) -> GridtfError | None:
    """Make the error for members with different variables, or whose layers have learned different things.

    Args:
        descriptions: Member -> what describe() has made of its own; in rank order.

    Returns:
        None where they are alike.
    """
    told = {name: json.loads(text) for name, text in descriptions.items()}
    (first, (learned, expected)), *others = told.items()
    for other, (theirs, _) in others:
        mine, its = _named(learned), _named(theirs)
        # a layer in a dataset may have been adapted by one of them, and have read that from a file in the other
        both = [name for name in mine | its if not name.endswith(BESIDE) or (name in mine and name in its)]
        told_of = ((name, pair) for name in both for pair in zip_longest(mine.get(name, ()), its.get(name, ())))
        if found := next((name for name, pair in told_of if not _alike(*pair)), None):
            return GridtfError(
                f"{first} and {other} have adapted {found} to different data",
                why="what it makes of an input differs, so that the mean of their models would be that of none",
                hint="adapt layers before group.share(…), or to all of the data",
            )
    for other, (_, lines) in others:
        pairs = enumerate(zip_longest(expected, lines, fillvalue=_NOTHING), 1)
        for number, (one, another) in (pair for pair in pairs if pair[1][0] != pair[1][1]):
            return GridtfError(
                f"{first} and {other} have attached different models",
                why=f"variable {number} is {one} at {first}, {another} at {other}",
                hint="build the model by the same lines in every task, and no other model before it",
            )
    return None


def _named(learned: Sequence[Learned]) -> dict[str, list[Learned]]:
    return {name: [each for each in learned if each[0] == name] for name, *_ in learned}


def _alike(one: Learned | None, other: Learned | None) -> bool:
    if one is None or other is None or [*one[:2]] != [*other[:2]]:
        return False
    size = max(one[3], other[3])
    return all(abs(mine - theirs) <= _ALIKE * size for mine, theirs in zip(one[2:], other[2:], strict=True))


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
