"""gridtf metrics: this user's waiting and running jobs for Prometheus."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf import files
from gridtf.cli import output
from gridtf.cli.common import new_parser
from gridtf.errors import OutputError, RunDirError
from gridtf.jobspec.arguments import Parser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gridtf.observe.views import JobView


def parser(**more: Any) -> Parser:
    examples = ("", "-o /var/lib/node_exporter/gridtf-ann.prom")
    made = new_parser("metrics", "[options]", examples, **more)
    made.add_argument("-o", "--output", metavar="FILE", type=Path, help="replace this file instead of printing")
    return made


def run(arguments: Namespace) -> int:
    from gridtf.observe import jobs, metrics
    from gridtf.run import registry
    from gridtf.states import JobState

    current = (JobState.PENDING, JobState.RUNNING)
    views = [view for view in jobs.views(list(registry.runs(os.environ))) if view.state in current]
    text = metrics.text(views, dict(_heartbeats(views)), time.time())
    if arguments.output is None:
        output.write(text)
    else:
        _replace(arguments.output, text)
    return 0


def _replace(path: Path, text: str) -> None:
    """Replace a file. Raises OutputError."""
    from gridtf.run.rundir import write_text

    if not path.name or (os.path.lexists(path) and not files.is_file(path)):  # /dev/null is not to be replaced
        raise OutputError(f"{path} is not a regular file", hint="without -o, the metrics go to stdout")
    if files.exists(path) and not _are_metrics(path):
        raise OutputError(f"{path} exists, and has no metrics of gridtf", hint="choose another file, or remove it")
    try:
        write_text(path, text)
    except RunDirError as error:  # whose hint is about run directories
        raise OutputError(error.what) from None


def _are_metrics(path: Path) -> bool:
    """Whether a file is empty, or has what this command writes."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror}") from None
    return not text or (text.endswith(b"# EOF\n") and text.startswith((b"# TYPE gridtf_", b"# EOF")))


def _heartbeats(views: Sequence[JobView]) -> Iterator[tuple[Path, float]]:
    """(run directory, when the launcher last gave a sign of life) of the jobs that have a launcher."""
    from gridtf.run import recordtypes
    from gridtf.run.reading import known
    from gridtf.run.rundir import RunDir

    for view in views:
        if view.attempt is not None:
            record = known(RunDir(view.run_dir).attempt(view.attempt).launcher, recordtypes.Launcher)
            if "time" in record:
                yield view.run_dir, record["time"]
