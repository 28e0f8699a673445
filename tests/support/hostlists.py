"""Random hostlists."""

from __future__ import annotations

import random


def random_hostlist(chance: random.Random, *, suffixes: bool = True) -> str:
    """A random hostlist of a few hosts, in forms on which all parsers of hostlists agree.

    Args:
        chance: The random numbers.
        suffixes: Whether to put text after some brackets, which `scontrol` of Slurm 22.05 refuses.
    """
    return ",".join(_host(chance, suffixes) for _ in range(chance.randint(1, 6)))


def _host(chance: random.Random, suffixes: bool) -> str:
    prefix = chance.choice(["n", "gpu-", "node", "r1c3-", "10.0.0.", "a.b-c", "x7y"])
    parts = [prefix, *(_bracket(chance) for _ in range(chance.choice([0, 1, 1, 1, 2])))]
    if len(parts) == 1:
        return prefix + str(chance.randint(0, 120))
    if suffixes and chance.random() < 0.4:
        parts.append(chance.choice(["-ib", ".example", "x"]))
    return chance.choice(["b", "-", "s"]).join(parts[:2]) + "".join(f"q{part}" for part in parts[2:])


def _bracket(chance: random.Random) -> str:
    """Numbers and ranges of one padding, such as ``[3,1-2,8]``."""
    width = chance.randint(1, 4)
    ranges = []
    for _ in range(chance.randint(1, 4)):
        first = chance.choice([0, 1, 7, 8, 9, 97, 99, chance.randint(0, 999)])
        last = first + chance.choice([0, 0, 1, 3, 12])
        low = f"{first:0{width}}"
        ranges.append(low if last == first else f"{low}-{last:0{len(low)}}")
    return f"[{','.join(ranges)}]"
