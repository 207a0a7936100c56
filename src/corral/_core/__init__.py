"""What the public types and every layer above need: pure functions and small types."""
