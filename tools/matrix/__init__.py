"""The tests on every Python and server that the project claims and this machine has."""
