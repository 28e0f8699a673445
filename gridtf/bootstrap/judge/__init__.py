"""How a task, an attempt or a job has ended, why, and what follows."""
