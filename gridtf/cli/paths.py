"""gridtf output and gridtf bootstrap-path: print one path, for a shell to use."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from gridtf import files
from gridtf.cli import output
from gridtf.cli.common import find_job, new_parser
from gridtf.errors import NotFoundError
from gridtf.jobspec.arguments import Parser


def parser_output(**more: Any) -> Parser:
    made = new_parser("output", "JOB", ("digits", "4711"), job=True, **more)
    made.epilog = 'examples:\n  ls "$(gridtf output digits)"'
    return made


def run_output(arguments: Namespace) -> int:
    job = find_job(arguments, alone_for="output")
    folder = job.output_dir
    if not files.is_folder(folder):
        raise NotFoundError(f"job {job.name} has no output: {folder} does not exist, or is closed to you")
    output.result(str(folder))
    return 0


def parser_bootstrap_path(**more: Any) -> Parser:
    made = new_parser("bootstrap-path", "", (), **more)
    made.epilog = 'in a job script:\n  source "$(gridtf bootstrap-path)"\n  gridtf_run --ps 1 -- python train.py'
    return made


def run_bootstrap_path(arguments: Namespace) -> int:
    from gridtf import resources

    output.write(f"{resources.bootstrap_script()}\n")
    return 0
