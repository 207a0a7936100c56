"""What each agent is: data and pure functions."""
