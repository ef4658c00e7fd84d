"""The gateway: real sockets, real processes, real storms."""
