"""Which task runs where, by which ports and variables the tasks know each other: what launcher, agents and joined tasks share."""
