"""Files of a checkpoint, read with no GPU, no torch and no pickle: ``.metadata``, archives, structure, checksums."""
