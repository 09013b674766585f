"""`build.toml`, and nothing else: text with positions, editions, schema, model, rules."""
