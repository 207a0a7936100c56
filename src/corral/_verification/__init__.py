"""Evidence that the work of a run is done, made by corral itself."""
