"""The database below the durable store and ledger: schema, migrations, connections, one writer."""
