"""The job specification: its options, where its values come from, and the request made from it."""
