"""A shop: forty tasks in six modules and a Django back office."""
