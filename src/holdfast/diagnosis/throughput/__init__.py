"""Where the time of a step goes: lines, loaders, reads to the host, recompilations."""
