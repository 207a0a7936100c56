"""What each agent is: data and pure functions, a package for each."""
