"""Inside the job: allocation, placement, agents, rendezvous, tasks, verdict. No TensorFlow here."""

from gridtf.bootstrap import later as later  # first of all: before anything loads dataclasses
