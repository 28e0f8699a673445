"""Which task runs where, and how the tasks know each other: what launcher, agents and joined tasks share."""
