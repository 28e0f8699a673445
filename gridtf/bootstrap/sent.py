"""What goes to the hosts through the run directory: the job's environment, where the scheduler takes none along; and
the gridtf package, for tasks that it runs itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from gridtf.run import recordtypes
from gridtf.run.rundir import Attempt, cannot, make_folder, need_ours, read_record, write_text

# What every host says for itself: its name, its temporary folder, the queue instance, the GPUs that it grants.
_OF_HOST = re.compile(
    r"(HOSTNAME|TMPDIR|TMP|QUEUE|ARC|SGE_ARCH|SGE_BINARY_PATH|SGE_JOB_SPOOL_DIR|SGE_STD(IN|OUT|ERR)_PATH|PE_HOSTFILE|"
    r"CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK|SGE_HGR_.*|SGE_GPU)"
)
# How qrsh has told its other half what to start: command lines, which may be long.
_OF_START = re.compile(r"QRSH_")
# What a host may say, or else the job.
_OF_HOST_FIRST = frozenset({"GRIDTF_LOCAL_GPUS", "GRIDTF_LOCKS"})


def leave(attempt: Attempt, nonce: str, environ: Mapping[str, str]) -> None:
    """Write it where nobody else can read it: people keep passwords in their environment. Raises RunDirError."""
    text = json.dumps({"nonce": nonce, "environ": dict(environ)})
    write_text(attempt.environment, text, mode=0o600)


def take(attempt: Attempt, nonce: str, environ: MutableMapping[str, str]) -> bool:
    """Make environ what the launcher of this attempt has left; False while a listing does not show that.

    Raises RunDirError.
    """
    record = read_record(attempt.environment, recordtypes.Environment, nonce=nonce, own=True)
    if record is None:
        return False
    merged = merge(environ, record["environ"])
    environ.clear()
    environ.update(merged)
    return True


# Where the gridtf package lies.
HOME = Path(__file__).resolve().parents[1]


def package_folder(attempt: Attempt, host: str) -> Path:
    """A folder that holds the gridtf package and nothing else: a task's Python need not be the one we run in."""
    folder = attempt.path / "python" / host
    make_folder(folder, parents=True)
    need_ours(folder)
    try:
        (folder / "gridtf").symlink_to(HOME)
    except OSError as error:
        raise cannot("make", folder, error) from None
    return folder


def merge(own: Mapping[str, str], sent: Mapping[str, str]) -> dict[str, str]:
    """The environment of the job on this host: what its script had, but for what is this host's own. Pure."""
    job = {name: text for name, text in sent.items() if not _OF_HOST.fullmatch(name)}
    first = {name: text for name, text in own.items() if _OF_HOST.fullmatch(name) or name in _OF_HOST_FIRST}
    return {**{name: text for name, text in own.items() if not _OF_START.match(name)}, **job, **first}
