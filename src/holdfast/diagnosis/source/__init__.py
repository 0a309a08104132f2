"""Reading the user's code: loops, caches, what a line lets grow."""
