"""Pictures for physicists."""
