"""Commands of mpirun for other hosts go by the launcher, and so does how they have ended."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gridtf.bootstrap.wire import messages
from gridtf.bootstrap.wire.stream import Listener
from gridtf.host.names import same_host
from gridtf.run.rundir import Record


class Remote:
    """Passes them on.

    Args:
        listener: The streams to the agents.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._told: dict[str, Record] = {}  # host -> all that it was told: a connection that is made anew repeats it
        self._asking = ""  # the host that mpirun is on

    def take(self, host: str, content: Record, hosts: Collection[str]) -> None:
        """Pass a message of the kind REMOTE on.

        Args:
            host: The host that has sent it.
            content: Its content.
            hosts: The hosts of the attempt.
        """
        changed: set[str] = set()

        def tell(target: str, kind: str, number: str, what: Any) -> None:
            told = self._told.setdefault(target, {"commands": {}, "codes": {}})[kind]
            if number not in told:
                told[number] = what
                changed.add(target)

        for number, command in content["commands"].items():
            self._asking = host
            # Open MPI 4 leaves out the domain
            like = (one for one in hosts if same_host(one, command[0]))
            target = command[0] if command[0] in hosts else next(like, "")
            if target:
                tell(target, "commands", number, command)
            else:
                tell(host, "codes", number, 1)
        for number, code in content["codes"].items():
            tell(self._asking, "codes", number, code)
        for target in changed:
            self._listener.send(target, messages.REMOTE, self._told[target])
