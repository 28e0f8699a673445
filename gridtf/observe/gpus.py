"""What the GPUs of a host do, from one of its samples. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def mean_use(devices: Mapping[str, Mapping[str, float]], names: Iterable[str]) -> float | None:
    """How busy GPUs of a host are on average, in percent; None where that is not known.

    Args:
        devices: The GPUs in the host's sample.
        names: Those that count.
    """
    known = [devices[name]["use"] for name in names if "use" in devices.get(name, ())]
    return sum(known) / len(known) if known else None
