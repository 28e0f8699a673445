"""gridtf bootstrap-path."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from gridtf.cli import output
from gridtf.cli.common import new_parser
from gridtf.jobspec.arguments import Parser


def parser(**more: Any) -> Parser:
    made = new_parser("bootstrap-path", "", (), **more)
    made.epilog = 'in a job script:\n  source "$(gridtf bootstrap-path)"\n  gridtf_run --ps 1 -- python train.py'
    return made


def run(arguments: Namespace) -> int:
    from gridtf import resources

    output.write(f"{resources.bootstrap_script()}\n")
    return 0
