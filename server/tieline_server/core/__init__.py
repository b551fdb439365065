"""The rules: what a line, a lane and a turn may do. Pure: no clock, no asyncio, no sockets."""
