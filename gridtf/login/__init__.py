"""The login side: rendering and submitting jobs, and what can be done with submitted ones."""
