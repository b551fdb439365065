"""Benchmarks that state bars: the product beside bare servers of the same stacks, in one run.

``make bench`` or ``tieline bench limits --quick``. Servers are processes of their own, started by
their commands; what is measured is their CPU, because wall time on a shared machine says little,
and all of it on one CPU, because waking another one costs more than what is measured.
"""
