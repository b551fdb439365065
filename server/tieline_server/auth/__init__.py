"""Who a client is (API keys), and what only its owner may open again (sealed content)."""
