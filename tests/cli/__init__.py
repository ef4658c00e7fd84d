"""The command line as people use it: in processes of its own."""
