"""Real clusters on one machine: every host is a set of Linux namespaces, and nothing outlives them."""
