"""Reviews of diffs, and the safe outputs of runs without rights."""
