"""Memory diagnosis: leaks, what holds them and which line makes them; out of memory."""
