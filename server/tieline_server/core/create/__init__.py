"""What a create asks for, looked at by itself: before it is known which response it continues.

``settings`` reads a create, checks it and remembers what comes again with each one; ``tools`` are
the part of them that is large. ``ignored`` finds what nothing here acts on. ``profile`` says what
this server offers, and ``limits`` how much of it. ``idempotency`` tells whether two creates are the
same. Nothing here knows a chain, a turn or a connection.
"""
