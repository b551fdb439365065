"""Long histories made short: the model's summaries, and the input that stands for a history.

What stays and what goes is decided in the core; here is what waits for an engine, and what a
client is given of it.
"""
