"""What a client hears: from the deltas of an engine to numbered events.

``output`` turns deltas into the events of output items, of which one is open at a time
(``open_item``). ``outbox`` numbers events and queues them, lanes taking turns, and merges deltas
where a reader is slow. ``replay_log`` keeps the events of responses that can be read again.
"""
