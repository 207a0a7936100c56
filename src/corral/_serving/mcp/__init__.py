"""``corral mcp``: agents, models and pipelines as tools of the Model Context Protocol."""
