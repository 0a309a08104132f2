"""Energy flow: a lattice of recurrent energy carriers that maps one sentence to another."""
