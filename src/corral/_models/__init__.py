"""What each vendor's API is: data and pure functions."""
