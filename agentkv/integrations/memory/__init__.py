"""What `agentkv.integrations.store` is made of: items, ops, filters, rankings and expiry."""
