"""What a process shows of its runs to others, and the messages that it sends about them."""
