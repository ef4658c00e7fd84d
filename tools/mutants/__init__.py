"""Break the source on purpose, one recorded change at a time, and see that the tests notice (`make mutants`)."""
