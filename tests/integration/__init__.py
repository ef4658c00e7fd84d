"""Worker and client together, against real servers."""
