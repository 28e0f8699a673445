"""The login side: rendering, submitting, and what can be asked of a submitted job."""
