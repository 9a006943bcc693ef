"""Pure functions from evidence to numbers."""
