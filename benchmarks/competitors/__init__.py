"""Other loaders behind one interface, each used as its own documentation says, and ours beside them."""
