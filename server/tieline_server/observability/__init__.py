"""What the server says of itself: log, traces and metrics, and the numbers of ``/metrics``."""
