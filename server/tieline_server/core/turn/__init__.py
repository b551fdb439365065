"""The life of one response, from its place in a queue to its terminal event.

``turn`` is what a turn knows, holds and says. The rules read it and change it: ``resolve`` finds
its model, settings, parent and input, ``finish`` ends it, ``follow`` has it read the events of
another response, ``steering`` takes new messages while it runs. ``machine`` stands above them and
carries out the table ``TURNS`` (``core/tables.py``): start reading there. ``timestamps`` tell where
the time went.
"""
