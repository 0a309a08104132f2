"""What an exception that ends the script says."""
