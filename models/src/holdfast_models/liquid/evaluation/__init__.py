"""What a trained network is worth, and what each of its features adds."""
