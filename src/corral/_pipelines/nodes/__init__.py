"""What the kinds of nodes do: one async function each."""
