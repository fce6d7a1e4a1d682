"""Who may do what: callers by their tokens and certificates, and what each may ask for."""
