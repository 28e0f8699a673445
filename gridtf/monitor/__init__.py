"""gridtf monitor: a job on a whole terminal, live. The only room with Textual, and imported by one command alone."""
