"""This host: processes, GPUs and locks."""
