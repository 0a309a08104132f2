"""What joins the spiking, the liquid and the state-space part of a block, and attention."""
