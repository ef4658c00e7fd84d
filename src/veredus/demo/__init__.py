"""The demonstration behind `make demo` and `veredus demo`."""
