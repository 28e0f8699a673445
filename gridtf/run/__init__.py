"""The run directory: its paths, its records, and the index of a user's runs."""
