"""The steps, named by their order."""
