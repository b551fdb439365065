"""The least that a server of each stack can do: the floor that the product is compared with.

Each is one file of its own, run as a process. They send bytes that the product itself has sent.
"""
