"""The tools in tools/ that have no other place: `make mutants`."""
