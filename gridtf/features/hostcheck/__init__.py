"""The check of the hosts before the tasks start (`check`): all measure at once, then in pairs, and are compared.

The launcher orders and compares (launcher, judge). An agent passes orders on to a program (hook/hostcheck), which the
tasks' Python runs in the tasks' container.
"""

CHECK = "check"  # from the launcher: measure this host, before RENDEZVOUS
CHECKED = "checked"  # from an agent: the answer
