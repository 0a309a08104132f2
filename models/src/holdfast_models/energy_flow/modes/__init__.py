"""Ways through the lattice that compute what ``model.loop`` does, faster or in less memory."""
