"""The model artifact and the tuning records: schema and store."""
