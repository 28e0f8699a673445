"""`gridtf report`: what happened in a job and what it used, as one HTML file."""
