"""Where the tasks of a running job are, and whether they do anything: `gridtf stacks`, and jobs that are stalled.

Agents notice since when their tasks have been quiet. Where all of them have been for long, or a user asks, the launcher
has the agents take the stacks of all processes; two of them that are equal show that the job is stalled.
"""

DUMP = "dump"  # from the launcher: send the stacks of all processes
STACKS = "stacks"  # from an agent: the answer; and what the file of a user's request begins with
