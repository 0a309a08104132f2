"""Host time that the guard takes: rows that train, parts of the guard, ways to compare."""
