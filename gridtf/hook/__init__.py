"""The folder that comes first on the PYTHONPATH of tasks; nothing imports it from here."""
