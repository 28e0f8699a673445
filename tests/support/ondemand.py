"""The files of packaging/ondemand, rendered as Open OnDemand does it."""

from __future__ import annotations

import json
import subprocess

import yaml

from tests.support.cluster import CHECKOUT
from tests.support.packages import need_program

APP = CHECKOUT / "packaging/ondemand"
_OF_ONDEMAND = {"bc_account", "bc_queue", "bc_num_hours"}  # which OnDemand itself turns into options of the job
# In submit.yml.erb what was typed has names of its own, in scripts it is in the context.
_ERB = """
require "erb"; require "json"; require "ostruct"
context = OpenStruct.new(JSON.parse(ARGV[1]))
puts ERB.new(File.read(ARGV[0]), trim_mode: "-").result(context.instance_eval { binding })
"""


def rendered(path: str, **typed: object) -> str:
    """A file of the app, with what a user has typed into the form."""
    ruby = need_program("ruby")
    form = yaml.safe_load((APP / "form.yml").read_text(encoding="utf-8"))
    assert {*typed} == {*form["form"]} - _OF_ONDEMAND == {*form["attributes"]}
    command = [ruby, "-e", _ERB, str(APP / path), json.dumps(typed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
