"""Who holds the others up, from the samples that the hosts send while tasks train in lock-step."""
