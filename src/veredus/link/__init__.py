"""Both ends of a connection between gateway and client: rules without I/O, and the transports that carry them."""
