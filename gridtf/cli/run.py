"""gridtf run: gridtf_run as a command, in an allocation that is there already or on this machine."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

from gridtf.cli.common import configured, new_parser
from gridtf.jobspec.arguments import Parser, add_job_options


def parser(**more: Any) -> Parser:
    examples = ("-- python train.py", "gridtf.toml", "--ps 2 -- python train.py     (inside salloc: on its hosts)")
    made = new_parser("run", "[JOBFILE] [options] -- command …", examples, **more)
    add_job_options(made)
    return made


def run(arguments: Namespace) -> int:
    from gridtf.bootstrap import main

    return main.run(configured(arguments), os.environ)
