"""The rules: what a connection, a lane and a turn may do. No clock, no asyncio, no sockets.

A driver tells a ``Connection`` what happened, then carries out the effects that it asks for and
sends the events that it has queued. Read from above: ``connection`` has lanes of turns, ``turn`` is
the life of one response, ``stream`` makes its events, ``history`` is what was said before, and
``create`` what was asked for. Each folder imports only those named behind it.

Beside them: ``tables`` (all that a state can become), ``effects`` (what the rules ask for),
``deltas`` (what an engine says) and ``values`` (who asks, which model answers, what a turn was).
"""
