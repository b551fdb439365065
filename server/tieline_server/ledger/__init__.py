"""What was used, one row a response: one module for each kind of ledger."""
