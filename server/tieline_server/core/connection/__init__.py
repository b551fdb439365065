"""One client's connection: its lanes, the turns on them, and when it ends.

``connection`` is the way in to all rules: a driver tells it what happened and carries out the
effects that it asks for. Its ``lanes`` are queues of turns side by side. ``pending_steers`` outlive
their response and go on in the next one, ``refusals`` are the errors that belong to no response.
"""
