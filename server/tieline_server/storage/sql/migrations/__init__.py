"""How the schema came to be: one script a step, in ``versions``."""
