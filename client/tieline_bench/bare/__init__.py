"""The least that a server of each stack can do, and a client: the floor of what is compared.

Each is one file of its own, run as a process. They send bytes that the product itself has sent.
"""
