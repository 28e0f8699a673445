"""gridtf completion: the code for the shell, and what that code calls."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from gridtf.arguments import Parser
from gridtf.cli import COMMANDS
from gridtf.cli.common import module, new_parser


def parser(**more: Any) -> Parser:
    made = new_parser("completion", "bash|zsh|fish", (), **more)
    made.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")
    made.epilog = (
        'in ~/.bashrc:                eval "$(gridtf completion bash)"\n'
        'in ~/.zshrc:                 eval "$(gridtf completion zsh)"\n'
        "in ~/.config/fish/config.fish:  gridtf completion fish | source"
    )
    return made


def run(arguments: Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["gridtf"], shell=arguments.shell))
    return 0


def complete() -> int:
    """Answer the shell, which asks through the environment; does not return when it did ask."""
    import argcomplete

    top = Parser("gridtf")
    commands = top.add_subparsers()
    for name, summary in COMMANDS.items():
        made = module(name).parser(add_help=False)
        commands.add_parser(name, parents=[made], help=summary, prog=made.prog)
    argcomplete.autocomplete(top, always_complete_options="long")
    return 0
