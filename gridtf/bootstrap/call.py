"""How an agent is called: forked from here, or by another Python with as little start-up as possible."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gridtf.bootstrap import sent
from gridtf.run.rundir import Attempt
from gridtf.schedulers.base import AgentCall

# Our own sys.path instead of site's search for it, and no garbage collection while modules are loaded.
_WARDEN = """\
import gc, sys
gc.disable()
sys.path[:] = {path!r}
from gridtf.bootstrap.warden import main
sys.exit(main(sys.argv[1:]))"""


def agent_call(attempt: Attempt, nonce: str, start_timeout: float) -> AgentCall:
    """The call for the agents of an attempt; start_timeout in seconds."""
    return AgentCall(
        arguments=(str(attempt.run.path), str(attempt.number), nonce, str(start_timeout)),
        main=_agent,
        command=(sys.executable, "-S", "-c", _WARDEN.format(path=sys.path)),
        log=attempt.agents_log,
        leave=lambda environ: sent.leave(attempt, nonce, environ),
    )


def _agent(words: Sequence[str]) -> int:
    from gridtf.bootstrap import agent

    return agent.main(words)
