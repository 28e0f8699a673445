"""Steps and epochs that programs print, read from the lines of their logs. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gridtf.values import Value

# 1200 or 1,200; neither 0.5, nor 2026-11-21, nor 12ms
_NUMBER = r"(\d{1,3}(?:,\d{3})+|\d{1,15})(?![\da-z]|[.,-]\d)"
_TOTAL = rf"(?:\s*(?:/|of)\s*{_NUMBER})?"
_IS = r"""["']?\s*[:=#]?\s*[\[(]?\s*"""  # step 120, step: 120, step = 120, "step": 120, Step [120/500]
_STEP = re.compile(rf"\b(?:global[_ ]?)?(?:step|iteration|iter|batch){_IS}{_NUMBER}{_TOTAL}", re.IGNORECASE)
_EPOCH = re.compile(rf"\bepoch{_IS}{_NUMBER}{_TOTAL}", re.IGNORECASE)
# Keras: ` 120/500 [===>....] - ETA: 5s`, `120/500 ━━━━━━ 5s 12ms/step`; tqdm: `24%|##4  | 120/500 [00:05<`
_BAR = re.compile(rf"(?:^\s*|\|\s*){_NUMBER}/(?:{_NUMBER}|Unknown|\?)\s*(?:\[[=>.\d]|[━─])")


class Count(Value):
    """How far a program has come, by what it has printed; None where it printed no such number.

    Attributes:
        step: The step; of a progress bar the one within its epoch.
        steps: How many steps there are.
        epoch: The epoch.
        epochs: How many epochs there are.
    """

    step: int | None = None
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None

    def __str__(self) -> str:
        step, epoch = _of(self.step, self.steps), _of(self.epoch, self.epochs)
        return ", ".join(part for part in (f"epoch {epoch}" if epoch else "", step) if part)


def read(lines: Sequence[str]) -> Count | None:
    """Find the last step and the last epoch in the last lines of a log.

    Args:
        lines: The lines, without control characters.

    Returns:
        The step that was printed last, unless an epoch has begun after it, and the epoch; None without either.
    """
    step: tuple[int | None, int | None] = (None, None)
    for line in reversed(lines):
        if step[0] is None and (found := _BAR.search(line) or _STEP.search(line)):
            step = _numbers(found)
        if found := _EPOCH.search(line):
            return Count(*step, *_numbers(found))
    return Count(*step) if step[0] is not None else None


def _numbers(found: re.Match[str]) -> tuple[int | None, int | None]:
    number, total = (int(text.replace(",", "")) if text else None for text in found.groups())
    return number, total


def _of(number: int | None, total: int | None) -> str:
    return "" if number is None else str(number) if total is None else f"{number}/{total}"
