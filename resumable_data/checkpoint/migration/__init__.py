"""A declared move of a run: what must survive it, what may change, and whether a launch is the move that was declared.

Nothing here imports torch.
"""
