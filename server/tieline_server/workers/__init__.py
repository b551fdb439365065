"""Several processes that serve as one: how they start, what they share, how they ask each other.

A supervisor starts workers, replaces those that die, and serves nothing itself. All of them
listen on the same ports (SO_REUSEPORT), and a turn runs in one of them.
"""
