"""What model calls use, and what they may use."""
