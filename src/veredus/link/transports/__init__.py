"""WebSocket and QUIC behind one small interface; the only place that knows picows and aioquic."""
