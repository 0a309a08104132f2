"""The network, part by part; each part has a plain reference that tests compare it with."""
