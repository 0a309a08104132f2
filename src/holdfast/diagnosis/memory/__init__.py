"""What grows, who holds it and which line lets it grow; what a run that was too big needed."""
