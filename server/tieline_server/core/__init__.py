"""The rules: what a connection, a lane and a turn may do. No clock, no asyncio, no sockets."""
