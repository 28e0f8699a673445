"""What launcher and agents say to each other, and how their words and records are written."""
