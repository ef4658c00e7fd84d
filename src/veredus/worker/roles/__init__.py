"""The roles of a worker, one small file each."""
