"""What was said before: the items of a conversation, as a chain that turns only ever add to.

``chain`` is the heart of the server: a turn puts new nodes behind the last one, and nothing before
them is copied, parsed or checked again. ``input_items`` reads what a client sends, ``input_checks``
says what may follow in a chain, ``sealed`` opens what clients carry for the server without reading
it. ``compaction`` chooses what stays where a chain has become too long, and ``holdings`` counts
which chains are in memory and lets go of those that no turn uses.
"""
