"""How a model that is sent token ids reads and writes: what the engines for such models share.

A chain becomes ids in the form of the model's own chat template, calls and formats become a
grammar, and what is sampled under it is read as thoughts, text and calls. *The runtime* is
whatever samples: llama.cpp in this process, or the server behind the upstream engine.
"""
