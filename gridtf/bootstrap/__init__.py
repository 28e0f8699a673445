"""Inside the job: allocation, placement, agents, rendezvous, tasks, verdict. No TensorFlow here."""
