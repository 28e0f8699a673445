"""Commands that users run beside a task (gridtf exec, gridtf shell).

A user writes a request into the run directory. The launcher sends it to the task's host, whose agent starts a process
that waits for the user by TLS, and serves it (session). How the command has ended goes the other way.
"""

EXEC = "exec"  # the messages of both sides: all commands of a host; and how those have ended
