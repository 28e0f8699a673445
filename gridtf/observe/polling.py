"""When a command that waits for a job looks at its run directory, and when it asks the scheduler. Pure.

The run directory tells nearly everything, so the scheduler is asked rarely: it has to be asked about a job that has not
started, whose launcher has gone silent, or that has ended with a failure, since it may be started again.
"""

from __future__ import annotations

from gridtf.values import Fields, Value

_LEARNT = 2.0  # intervals without a heartbeat after which a launcher counts as silent


class Tempo(Value):
    """How often one kind of scheduler is asked; all but growth in seconds.

    Attributes:
        first: Pause after the first question, and after a change.
        growth: Factor from one pause to the next.
        silent: The longest pause where the records do not show that the job lives.
        longest: The longest pause for a job that waits for its start, or that has a heartbeat.
        ending: First pause once the run directory shows that the job is ending.
        look: Pause between the first looks at the run directory.
    """

    first: float
    growth: float
    silent: float
    longest: float
    ending: float
    look: float

    def at_most(self, longest: float) -> Tempo:
        """The same with no pause between two questions longer than this."""
        names = ("first", "silent", "longest", "ending", "look")
        return self.replace(**{name: min(getattr(self, name), longest) for name in names})


CLUSTER = Tempo(first=10.0, growth=2.0, silent=10.0, longest=60.0, ending=1.0, look=1.0)
# Only this machine is asked about a job on it.
HERE = Tempo(first=0.1, growth=1.3, silent=2.0, longest=10.0, ending=0.1, look=0.1)


class Pace(Fields):
    """The pauses of a command that waits for a job.

    Attributes:
        tempo: How often its scheduler is asked.
        asked: When the answer in use was asked for; None before the first.
        pause: The pause after it; the limits of ``due`` apply.
        beat: When the last heartbeat was seen; None before the first.
        gap: The longest time between two heartbeats so far: hundreds of hosts have rarer ones.
    """

    tempo: Tempo
    asked: float | None = None
    pause: float = 0.0
    beat: float | None = None
    gap: float = 0.0

    def answered(self, asked: float) -> None:
        """Note an answer, and when it was asked for: the next pause is longer."""
        first = self.asked is None and not self.pause
        self.pause = self.tempo.first if first else min(self.pause * self.tempo.growth, self.tempo.longest)
        self.asked = asked

    def changed(self) -> None:
        """Note that the state of the job has changed: begin again with short pauses."""
        self.pause = min(self.pause, self.tempo.first)

    def ends(self) -> None:
        """Note that the run directory shows that the job is ending."""
        self.pause = self.tempo.ending

    def heard(self, now: float) -> None:
        """Note a heartbeat of the launcher."""
        if self.beat is not None:
            self.gap = max(self.gap, now - self.beat)
        self.beat = now

    def alive(self, now: float) -> bool:
        """Whether the launcher's heartbeats are fresh."""
        return self.beat is not None and now - self.beat <= max(self.tempo.silent, _LEARNT * self.gap)

    def due(self, now: float, *, patient: bool) -> float:
        """When to ask next.

        Args:
            now: The time.
            patient: Whether nothing is lost by pauses as long as for a job that waits for its start.
        """
        if self.asked is None:
            return now
        return self.asked + self.limited(now, patient=patient)

    def limited(self, now: float, *, patient: bool) -> float:
        """The pause, and the age of another command's answer that may take the place of one of its own."""
        return min(self.pause, self.tempo.longest if patient or self.alive(now) else self.tempo.silent)
