"""One host: its tasks, from their start to their end, and what is seen of them."""
