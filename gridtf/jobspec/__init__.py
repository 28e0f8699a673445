"""What the user asked for: the specification, where its values come from, and what it comes to."""
